"""Simulate a scheduler on a GPU that is not there: python -m lab3.simulate --out DIR [options]

    python -m lab3.simulate --scheduler my_scheduler.SJFScheduler --num-prompts 1000 \\
        --input-len 1024 --output-len 256 --request-rate 16 --seed 42 \\
        --model qwen2.5-7b --hardware a100-80g --out runs/sim/sjf-r1

Drives the real vLLM scheduler and KV manager on a virtual clock, and writes the folder that a live
run writes (bench.json, steps.jsonl, run.json with "source": "simulated"): tables and figures of
lab3.table and lab3.figures work on it. The same options give the same bytes. Exit code 1: the
workload cannot run on this engine; 2: an option makes no sense.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    args = _parser().parse_args(argv)
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    logging.getLogger("vllm").setLevel(logging.WARNING)
    from lab3.sim.jobs import simulate
    from lab3.sim.writer import write_run

    try:
        job = job_from(args)
        progress = None if args.quiet else _Progress()
        began_s = time.process_time()
        simulation = simulate(job, progress=progress)
        seconds = time.process_time() - began_s
    except (ValueError, ImportError, AttributeError) as error:
        print(f"error: {_one_line(error)}", file=sys.stderr)
        return 2
    except RuntimeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    write_run(args.out, job, simulation)
    print(report(job, simulation))
    if not args.quiet:
        count = len(simulation.workload)
        speed = f"{count / seconds:.0f} requests/s" if seconds else "at once"
        print(f"{count} requests, {simulation.num_steps} steps: {speed}", file=sys.stderr)
    return 0


def report(job: Any, simulation: Any) -> str:
    """A few lines on the run; the same for the same job."""
    from lab3.sim.writer import bench_result, bound_columns

    bench, bounds = bench_result(job, simulation), bound_columns(job, simulation)
    workload, cost = simulation.workload, job.cost_model()
    lines = [
        f"SIMULATED: {job.scheduler or 'vLLM default'} {json.dumps(job.settings)}, {cost.name}",
        f"workload: {len(workload)} requests, {workload.name}",
        *(f"note: {note}" for note in workload.notes),
    ]
    for name in ("ttft", "tpot", "itl", "e2el"):
        if f"mean_{name}_ms" in bench:
            values = [bench[f"{part}_{name}_ms"] for part in ("mean", "median", "p99")]
            mean, median, p99 = (f"{value:,.1f}" for value in values)
            lines.append(f"{name.upper():5} mean {mean}  P50 {median}  P99 {p99} ms")
    longest = max(max(gaps, default=0.0) for gaps in bench["itls"])
    lines += [
        f"longest gap {1e3 * longest:,.1f} ms, preemptions {simulation.preemptions}",
        f"throughput {bench['output_throughput']:,.0f} output tokens/s, "
        f"{bench['request_throughput']:.2f} requests/s, makespan {simulation.end_s:.2f} s",
    ]
    if bounds:
        lines.append(
            f"fraction of bound: makespan {bounds['makespan_bound_fraction']:.2f}, "
            f"TTFT {bounds['ttft_bound_fraction']:.2f}, E2E {bounds['e2e_bound_fraction']:.2f}"
        )
    return "\n".join(lines)


def job_from(args: argparse.Namespace) -> Any:
    """The job that the options describe; raises ValueError."""
    from lab3.sim.jobs import Job

    options = {name: value for name, value in vars(args).items() if name not in ("out", "quiet")}
    for name in ("settings", "cost"):
        options[name] = _json_object(name, options[name])
    if options["scheduler"] == "default":
        options["scheduler"] = None
    arm = options["arm"]
    if arm is None:
        name = (options["scheduler"] or "default").rpartition(".")[2]
        options["arm"] = name.removesuffix("Scheduler").lower()
    return Job(**options)


class _Progress:
    """A line on stderr, at most five times a second."""

    def __init__(self) -> None:
        self._due_s = 0.0

    def __call__(self, done: int, total: int) -> None:
        if time.monotonic() >= self._due_s or done == total:
            self._due_s = time.monotonic() + 0.2
            end = "\n" if done == total else ""
            print(f"\r{done}/{total} requests", end=end, file=sys.stderr, flush=True)


def _json_object(name: str, text: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except ValueError as error:
        raise ValueError(f"--{name} is not JSON ({error}): {text}") from None
    if not isinstance(content, dict):
        raise ValueError(f'--{name} must be an object like {{"key": 1}}, not {text}')
    return content


def _one_line(error: Exception) -> str:
    # pydantic's message has one line a mistake, between a head and a link.
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in lines if line.startswith("Value error")), lines[0])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lab3.simulate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the run, emptied first")
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")
    _add_scheduler(parser.add_argument_group("scheduler"))
    _add_workload(parser.add_argument_group("workload"))
    _add_engine(parser.add_argument_group("engine and cost model"))
    _add_names(parser.add_argument_group("names in tables"))
    return parser


def _add_scheduler(group: Any) -> None:
    group.add_argument("--scheduler", default="default", help="default, or a dotted class name")
    group.add_argument("--settings", default="{}", help="its lab3 settings as JSON")
    group.add_argument(
        "--predictions",
        default="none",
        help="none, oracle, or noise:S, bias:B, classes:FILE, history:Q, missing:M with commas",
    )


def _add_workload(group: Any) -> None:
    group.add_argument("--num-prompts", type=int, default=1000)
    group.add_argument("--input-len", type=int, default=1024)
    group.add_argument("--output-len", type=int, default=256)
    group.add_argument("--range-ratio", type=float, default=0.0)
    group.add_argument("--prefix-len", type=int, default=0, help="prompt tokens that all share")
    group.add_argument("--trace", help="CSV trace (own columns, Azure's or BurstGPT's)")
    group.add_argument("--shape", help="lengths like a public trace's, see docs/simulator.md")
    group.add_argument("--resample", action="store_true", help="draw the trace's rows by the seed")
    group.add_argument(
        "--request-rate",
        type=float,
        default=math.inf,
        help="requests/s; inf: all at once, or a trace's own times",
    )
    group.add_argument("--rate-scale", type=float, default=1.0, help="speeds up a trace's times")
    group.add_argument("--burstiness", type=float, default=1.0, help="1 Poisson, below 1 bursts")
    group.add_argument("--max-output-tokens", type=int, help="max_tokens (default: true output)")
    group.add_argument("--clip", choices=("clip", "drop", "refuse"), default="clip")
    group.add_argument("--seed", type=int, default=0)


def _add_engine(group: Any) -> None:
    group.add_argument("--model", default="qwen2.5-7b")
    group.add_argument("--hardware", default="a100-80g")
    group.add_argument("--cost", default="{}", help="other cost parameters as JSON")
    group.add_argument("--cost-file", help="a cost model written by lab3.calibrate")
    group.add_argument("--kv-blocks", type=int, default=0, help="0: what the device has room for")
    group.add_argument("--block-size", type=int, default=16)
    group.add_argument("--max-model-len", type=int, default=32_768)
    group.add_argument("--max-num-seqs", type=int, default=256)
    group.add_argument("--max-num-batched-tokens", type=int, default=2048)
    group.add_argument("--enable-prefix-caching", action=argparse.BooleanOptionalAction)
    group.add_argument("--async-scheduling", action=argparse.BooleanOptionalAction, default=True)
    group.add_argument("--watermark", type=float, default=0.0)
    group.add_argument("--reserve-full-isl", action=argparse.BooleanOptionalAction, default=True)
    group.set_defaults(enable_prefix_caching=False)


def _add_names(group: Any) -> None:
    group.add_argument("--task", default="sim")
    group.add_argument("--arm")
    group.add_argument("--label", default="")
    group.add_argument("--repeat", type=int, default=1)
    group.add_argument("--timeout-s", type=float, default=60.0)


if __name__ == "__main__":
    sys.exit(main())

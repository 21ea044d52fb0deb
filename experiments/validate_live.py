"""Validation (a): calibrate on one live run, predict others. python -m experiments.validate_live
--calibrate RUN... --predict RUN...

Fits the step-time model on the recorded steps of the first runs, then simulates each of the others
(policy, settings, rate, lengths and engine read from its run.json) and compares what its client
measured. The runs that are predicted are never fitted on: naming one twice is refused. Writes
validation_live.csv and the fitted cost model into --out. Goal: means within 10 %, P99 within 25 %.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.common import OUT, measure
from lab3.bench_file import ResultError
from lab3.calibrate import calibrate, report
from lab3.commands import assignments, option
from lab3.results import load_run
from lab3.sim.cost_model import save_cost_model
from lab3.sim.jobs import Job
from lab3.summary import run_row

GOALS = {"mean": 0.10, "p99": 0.25}
COMPARED = (
    "ttft_mean_ms",
    "ttft_p50_ms",
    "ttft_p99_ms",
    "tpot_mean_ms",
    "tpot_p50_ms",
    "tpot_p99_ms",
    "e2e_mean_ms",
    "e2e_p99_ms",
)


def job_of(raw: dict[str, Any], cost_file: Path) -> Job:
    """The simulation of a live run, from its run.json.

    The requests are those of vLLM's random data set, or of the trace file that its client replayed;
    the predictions are what the server's LAB3_PREDICTOR says. Raises ValueError for a random data
    set with two ratios.
    """
    serve, bench, pool = raw["serve_cmd"], raw["bench_cmd"], raw["kv_cache"]

    def number(words: list[str], name: str, default: float) -> float:
        text = option(words, name)
        return default if text is None else float(text)

    replays = option(bench, "dataset-name") == "timed_trace"
    return Job(
        scheduler=raw["scheduler_cls"],
        settings=raw["scheduler_settings"],
        arm=raw["arm"],
        trace=option(bench, "dataset-path") if replays else None,
        num_prompts=int(number(bench, "num-prompts", 1000)),
        input_len=int(number(bench, "random-input-len", 1024)),
        output_len=int(number(bench, "random-output-len", 128)),
        range_ratio=number(bench, "random-range-ratio", 0.0),
        # A trace comes at its own times.
        request_rate=math.inf if replays else number(bench, "request-rate", math.inf),
        burstiness=number(bench, "burstiness", 1.0),
        predictions=assignments(serve).get("LAB3_PREDICTOR", "none"),
        seed=int(number(bench, "seed", 0)),
        cost_file=str(cost_file),
        kv_blocks=pool["num_blocks"],
        block_size=pool["block_size"],
        max_model_len=int(number(serve, "max-model-len", 32_768)),
        max_num_seqs=int(number(serve, "max-num-seqs", 256)),
        max_num_batched_tokens=int(number(serve, "max-num-batched-tokens", 2048)),
        enable_prefix_caching="--no-enable-prefix-caching" not in serve,
        async_scheduling=bool(raw["async_scheduling"]),
        watermark=number(serve, "watermark", 0.0),
    )


def compare(folder: Path, cost_file: Path) -> list[dict[str, Any]]:
    """A row per compared metric of one live run."""
    run = load_run(folder)
    measured, simulated = run_row(run), measure(job_of(run.info.raw, cost_file), COMPARED)
    return [
        {
            "run": folder.name,
            "request_rate": run.info.point.get("request_rate"),
            "metric": metric,
            "measured_ms": measured[metric],
            "simulated_ms": simulated[metric],
            "error": simulated[metric] / measured[metric] - 1,
        }
        for metric in COMPARED
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calibrate", type=Path, nargs="+", required=True, metavar="RUN")
    parser.add_argument("--predict", type=Path, nargs="+", required=True, metavar="RUN")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    fitted = {path.resolve() for path in args.calibrate}
    if both := fitted & {path.resolve() for path in args.predict}:
        print(f"error: {both.pop()} is fitted on and must not be predicted", file=sys.stderr)
        return 2
    cost_file = args.out / "validation_live_cost.json"
    args.out.mkdir(parents=True, exist_ok=True)
    try:
        model, steps = calibrate(args.calibrate)
        save_cost_model(model, cost_file)
        print(report(model, steps))
        rows = [row for folder in args.predict for row in compare(folder, cost_file)]
    except (ResultError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    table = pd.DataFrame(rows)
    table.to_csv(args.out / "validation_live.csv", index=False, float_format="%.4g")
    print(table.to_string(index=False, formatters={"error": "{:+.1%}".format}))
    goal = table.metric.map(lambda metric: GOALS.get(metric.split("_")[1], math.inf))
    return int((table.error.abs() > goal).any())


if __name__ == "__main__":
    sys.exit(main())

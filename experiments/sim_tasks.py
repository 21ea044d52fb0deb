"""Experiment 1: Lab Tasks 2 and 3 on GPUs that are not there. python -m experiments.sim_tasks

Qwen2.5-7B on an A100-80G and Qwen3-0.6B on an H200, 1024/256, fixed and varied lengths, rates
below, at and above capacity. Task 2 sweeps max_num_batched_tokens, Task 3 compares strategies. The
longest gap of a request stands beside ITL P99, which hides one long stall a request. Writes
tasks.csv, tasks.json and figures into --out. The lab's own size is --num-prompts 1000.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.common import Arm, Table, capacity, options, relative, write_setup
from lab3.sim.jobs import Job

ENGINES = (("qwen2.5-7b", "a100-80g"), ("qwen3-0.6b", "h200"))
LOADS = (0.7, 1.0, 1.3)
ARMS = (
    Arm("default"),
    Arm("A", "StepExclusivePrefillFirstScheduler"),
    Arm("A, K=2", "StepExclusivePrefillFirstScheduler", {"max_prefill_steps": 2}),
    Arm("SJF", "SJFScheduler"),
    Arm("adaptive", "AdaptiveChunkScheduler", {"itl_target_ms": 60.0}),
    Arm("decode-first", "PureDecodeFirstScheduler"),
    Arm("decode-first, fill", "PureDecodeFirstScheduler", {"fill": True}),
)
BUDGETS = (512, 1024, 4096, 8192)
"""Beside 2048, which every other row has."""

KEYS = ("engine", "lengths", "load", "budget", "arm", "seed")


def wanted(args: Any) -> Iterator[tuple[dict[str, Any], Job]]:
    sweep = tuple(Arm("default", options={"max_num_batched_tokens": budget}) for budget in BUDGETS)
    for lengths, ratio in (("fixed", 0.0), ("varied", 0.9)):
        for model, hardware in ENGINES:
            job = Job(
                model=model, hardware=hardware, num_prompts=args.num_prompts, range_ratio=ratio
            )
            most = capacity(job)
            for load in LOADS:
                for arm in (*ARMS, *(sweep if ratio == 0 else ())):
                    for seed in args.seeds:
                        base = replace(job, request_rate=round(load * most, 3), seed=seed)
                        made = arm.job(base)
                        engine = f"{model} on {hardware}"
                        budget = made.max_num_batched_tokens
                        key = (engine, lengths, load, budget, arm.name, seed)
                        yield dict(zip(KEYS, key, strict=True)), made


SHOWN = (
    ("ttft_p50_ms", "TTFT P50"),
    ("itl_p99_ms", "ITL P99"),
    ("max_gap_p99_ms", "longest gap P99"),
    ("e2e_mean_ms", "E2E mean"),
)


def draw(table: Table, out: Path) -> None:
    """Each strategy's ratio to the default over load, a metric a column, an engine a row."""
    from lab3.figures.style import footer, log_axis, looks, new_figure, save

    frame = table.read()
    frame = frame[frame.budget == "2048"]
    for lengths in dict.fromkeys(frame.lengths):
        engines = list(dict.fromkeys(frame.engine))
        figure, axes = new_figure(len(engines), len(SHOWN), 11.0, 3.2 * len(engines))
        look = looks([arm.name for arm in ARMS[1:]])
        for row, engine in enumerate(engines):
            part = frame[(frame.engine == engine) & (frame.lengths == lengths)]
            for column, (metric, name) in enumerate(SHOWN):
                panel = axes[row, column]
                change = 1 + relative(part, ("load",), metric)["mean"].unstack("arm")
                for arm in (a.name for a in ARMS[1:] if a.name in change):
                    own = look[arm]
                    panel.plot(
                        change.index.astype(float),
                        change[arm],
                        color=own.colour,
                        ls=own.line,
                        marker=own.marker,
                        ms=4,
                        label=arm,
                    )
                panel.axhline(1, color="0.5", lw=0.8)
                log_axis(panel, "y")
                panel.set_title(f"{name}, {engine}", fontsize=7)
        axes[0, 0].set_ylabel("ratio to vLLM's default")
        axes[-1, 0].set_xlabel("load (1 = capacity)")
        axes[0, 0].legend(fontsize=6)
        footer(
            figure,
            [
                f"SIMULATED: roofline; 1024/256, {lengths} lengths, budget 2048; mean ratio over "
                f"{frame.seed.nunique()} seeds.",
            ],
        )
        save(figure, out, f"tasks_{lengths}")


def main() -> int:
    args = options(__doc__).parse_args()
    table = Table(args.out / "tasks.csv", KEYS)
    complete = table.fill(list(wanted(args)), args.processes, args.limit_s)
    write_setup(
        args.out / "tasks.json", {"experiment": "Tasks 2 and 3"}, Job(num_prompts=args.num_prompts)
    )
    draw(table, args.out)
    return 0 if complete else 3


if __name__ == "__main__":
    sys.exit(main())

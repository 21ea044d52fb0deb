"""Experiment 1: Lab Tasks 2 and 3 on GPUs that are not there. python -m experiments.sim_tasks

Qwen2.5-7B on an A100-80G and Qwen3-0.6B on an H200, 1024/256, fixed and varied lengths, rates
below, at and above capacity. Task 2 sweeps max_num_batched_tokens, Task 3 compares strategies. The
longest gap of a request stands beside ITL P99, which hides one long stall a request. Writes
tasks.csv, tasks.json and figures into --out. The lab's own size is --num-prompts 1000.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.common import Arm, Experiment, capacity
from experiments.report import cells, change_cell, relative, seeds_text, winner_cell, winners, write
from lab3.sim.jobs import Job
from lab3.text_table import Cell, Table, number, share

ENGINES = (
    ("qwen2.5-7b", "a100-80g", {"fixed": (8.0, 16.0, "1.0"), "varied": (16.0, "1.0")}),
    ("qwen3-0.6b", "h200", {"fixed": (8.0, 16.0, "1.0", "1.3"), "varied": ("1.0", "1.3")}),
)
"""Model, device, and points: the lab's rates (Task 3: 8, Task 2: 16 requests/s) as numbers, loads
(1 is capacity) as text. The rates are 0.8 and 1.5 times the first engine's capacity, and far below
the second's."""

RANGE_RATIO = {"fixed": 0.0, "varied": 0.9}
ARMS = (
    Arm("default"),
    Arm("A", "StepExclusivePrefillFirstScheduler"),
    Arm("SJF", "SJFScheduler"),
    Arm("adaptive", "AdaptiveChunkScheduler", {"itl_target_ms": 60.0}),
    Arm("decode-first", "PureDecodeFirstScheduler"),
    Arm("decode-first, fill", "PureDecodeFirstScheduler", {"fill": True}),
)
BUDGETS = (512, 1024, 4096, 8192)
"""Beside 2048, which every other row has."""

SWEPT = ("rate 16", "load 1.0")
LITERAL = "rate 16"
"""Literal decode-first takes a hundred times the steps: it collapses, which one point shows."""

KEYS = ("engine", "lengths", "point", "budget", "arm", "seed")


def wanted(args: Any) -> Iterator[tuple[dict[str, Any], Job]]:
    sweep = tuple(Arm("default", options={"max_num_batched_tokens": budget}) for budget in BUDGETS)
    for (model, hardware, points), lengths in itertools.product(ENGINES, RANGE_RATIO):
        job = Job(
            model=model,
            hardware=hardware,
            num_prompts=args.num_prompts,
            range_ratio=RANGE_RATIO[lengths],
        )
        most = capacity(job)
        for point in points[lengths]:
            by_load = isinstance(point, str)
            rate = round(float(point) * most, 3) if by_load else point
            name = f"load {point}" if by_load else f"rate {point:g}"
            arms = [arm for arm in ARMS if arm.name != "decode-first"]
            if lengths == "fixed":
                arms += sweep if name in SWEPT else []
                arms += [arm for arm in ARMS if arm.name == "decode-first" and name == LITERAL]
            for arm, seed in itertools.product(arms, args.seeds):
                made = arm.job(replace(job, request_rate=rate, seed=seed))
                budget = made.max_num_batched_tokens
                key = (f"{model} on {hardware}", lengths, name, budget, arm.name, seed)
                load = {"load": round(rate / most, 3)}
                yield dict(zip(KEYS, key, strict=True)) | load, made


CELL = ("engine", "lengths", "point")
SHOWN = (
    ("ttft_p50_ms", "TTFT P50"),
    ("itl_p99_ms", "ITL P99"),
    ("max_gap_p99_ms", "longest gap P99"),
    ("e2e_mean_ms", "E2E mean"),
)
TABLED = (
    SHOWN[0],
    ("ttft_p99_ms", "TTFT P99"),
    ("itl_p50_ms", "ITL P50"),
    *SHOWN[1:],
    ("output_tokens_per_s", "output tok/s"),
)


def regime_labels(frame: pd.DataFrame) -> dict[tuple, str]:
    """Each regime's name with its load, which is 1 at capacity."""
    loads = frame.groupby(list(CELL), sort=False).load.first()
    return {key: f"{key[2]} (load {load:.2g})" for key, load in loads.items()}


def strategy_table(frame: pd.DataFrame, engine: str, lengths: str) -> Table:
    """Every strategy at every point: vLLM's default in numbers, the others as changes of it."""
    labels, arms = regime_labels(frame), [arm.name for arm in ARMS]
    changes = {metric: relative(frame, CELL, metric) for metric, _ in TABLED}
    values = frame.groupby([*CELL, "arm"], sort=False).mean(numeric_only=True)
    rows = []
    for key in (key for key in cells(frame, CELL) if key[:2] == (engine, lengths)):
        for arm in (arm for arm in arms if (*key, arm) in values.index):
            own = values.loc[(*key, arm)]
            if arm == "default":
                found = [Cell(number(own[metric])) for metric, _ in TABLED]
            else:
                found = [change_cell(changes[m], (*key, arm), with_range=False) for m, _ in TABLED]
            bound = Cell(share(own.e2e_bound_fraction))
            rows.append((Cell(f"{labels[key]}: {arm}"), *found, bound))
    headers = [("strategy", ""), *((name, "") for _, name in TABLED), ("fraction of bound", "E2E")]
    return Table(f"{engine}, {lengths} lengths (ms; changes of it)", tuple(headers), tuple(rows))


def winner_table(frame: pd.DataFrame) -> Table:
    """The best strategy of each regime, beside the default's own numbers."""
    labels = regime_labels(frame)
    found = {metric: winners(frame, CELL, metric) for metric, _ in SHOWN}
    default = frame[frame.arm == "default"].groupby(list(CELL), sort=False).mean(numeric_only=True)
    rows = []
    for key in cells(frame, CELL):
        own = default.loc[key]
        best = (winner_cell(found[metric], key) for metric, _ in SHOWN)
        texts = (f"{key[0]}, {key[1]}", labels[key], f"{own.waiting_mean:.0f}")
        rows.append((*map(Cell, texts), *best))
    headers = [
        ("engine", "lengths"),
        ("point", ""),
        ("queue", "mean"),
        *((n, "") for _, n in SHOWN),
    ]
    return Table("Tasks 2 and 3: best strategy against the default", tuple(headers), tuple(rows))


def sweep_table(frame: pd.DataFrame) -> Table:
    """Task 2: vLLM's default over max_num_batched_tokens."""
    default = frame[(frame.arm == "default") & (frame.lengths == "fixed")]
    default = default[default.point.isin(SWEPT)].assign(budget=default.budget.astype(int))
    values = default.groupby(["engine", "point", "budget"]).mean(numeric_only=True)
    columns = ("ttft_p50_ms", "ttft_p99_ms", "itl_p50_ms", "itl_p99_ms", "max_gap_p99_ms")
    rows = [
        (
            *(Cell(text) for text in (f"{engine}, {point}", f"{budget:,}")),
            *(Cell(number(own[name])) for name in columns),
            Cell(number(own.output_tokens_per_s)),
        )
        for (engine, point, budget), own in values.iterrows()
    ]
    names = ("TTFT P50", "TTFT P99", "ITL P50", "ITL P99", "longest gap P99")
    headers = [("engine", ""), ("max_num_batched_tokens", ""), *((name, "ms") for name in names)]
    headers.append(("throughput", "output tok/s"))
    return Table("Task 2, simulated: default over the budget", tuple(headers), tuple(rows))


def show(rows: pd.DataFrame, out: Path) -> None:
    """tasks.md, tasks_winners.md, tasks_sweep.md and the figures."""
    frame = rows[rows.budget == "2048"]
    seeds = seeds_text(frame, CELL)
    note = f"SIMULATED: roofline; 1,024/256 tokens, mean of {seeds}; varied: lengths +-90 %."
    rule = (
        "A winner is better than the default at every seed, by 2 % at least; queue: the default's."
    )
    write(out / "tasks_winners.md", [winner_table(frame)], [note, rule])
    write(out / "tasks_sweep.md", [sweep_table(rows)], [note])
    pairs = cells(frame, ("engine", "lengths"))
    tables = [strategy_table(frame, engine, lengths) for engine, lengths in pairs]
    write(out / "tasks.md", tables, [note])
    for lengths in dict.fromkeys(frame.lengths):
        draw(frame[frame.lengths == lengths], out, lengths, seeds)


def draw(frame: pd.DataFrame, out: Path, lengths: str, seeds: str) -> None:
    """Each strategy's ratio to the default over load, a metric a column, an engine a row."""
    from lab3.figures.style import footer, legend_above, log_axis, looks, new_figure, save

    engines = list(dict.fromkeys(frame.engine))
    figure, axes = new_figure(len(engines), len(SHOWN), 12.0, 2.9 * len(engines))
    look = looks([arm.name for arm in ARMS])
    loads = frame.groupby(["engine", "point"]).load.first()
    for row, engine in enumerate(engines):
        for column, (metric, name) in enumerate(SHOWN):
            panel = axes[row, column]
            part = frame[frame.engine == engine]
            change = 1 + relative(part, ("point",), metric)["mean"].unstack("arm")
            change.index = [loads[engine, point] for point in change.index]
            change = change.sort_index()
            for arm in (a.name for a in ARMS[1:] if a.name in change):
                own = look[arm]
                panel.plot(
                    change.index,
                    change[arm],
                    color=own.colour,
                    ls=own.line,
                    marker=own.marker,
                    ms=4,
                    lw=1.3,
                    label=arm,
                )
            panel.axhline(1, color="black", lw=0.8)
            log_axis(panel, "y")
            panel.set_title(f"{name}, {engine.split(' on ')[0]}", fontsize=9)
        axes[row, 0].set_ylabel("ratio to vLLM's default")
    for panel in axes[-1]:
        panel.set_xlabel("load (1 = capacity)")
    legend_above(figure, axes[0, 0].get_legend_handles_labels()[0], columns=6)
    footer(figure, [f"SIMULATED: roofline; 1,024/256, {lengths}, budget 2048; mean of {seeds}."])
    save(figure, out, f"tasks_{lengths}")


EXPERIMENT = Experiment(
    name="tasks",
    keys=KEYS,
    base=lambda args: Job(num_prompts=args.num_prompts),
    wanted=wanted,
    show=show,
)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main(__doc__))

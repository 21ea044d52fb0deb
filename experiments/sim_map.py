"""Experiment 3: which policy where. python -m experiments.sim_map [--trace CSV]

Kinds of lengths x load x KV pool on an A100-80G with Qwen2.5-7B: the policy with the lowest mean
JCT and the one with the smallest longest gap, with the default's queue depth and KV pressure, which
say what regime it is. A difference smaller than the spread of the seeds counts as none. Writes
map_runs.csv, map.csv, map.json and map.png/.svg/.pdf into --out.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.common import Arm, Table, capacity, options, relative, write_setup
from experiments.sim_dla import lengths_job, scarce_blocks
from lab3.sim.jobs import Job

LOADS = (0.7, 1.0, 1.3)
ARMS = (
    Arm("default"),
    Arm("A", "StepExclusivePrefillFirstScheduler"),
    Arm("SJF", "SJFScheduler"),
    Arm("adaptive", "AdaptiveChunkScheduler", {"itl_target_ms": 60.0}),
    Arm("DLA", "DLAScheduler"),
    Arm("DLA-SRPT", "DLASRPTScheduler"),
    Arm("watermark 0.03", options={"watermark": 0.03}),
)
KEYS = ("lengths", "load", "kv", "arm", "seed")
CELL = ["lengths", "load", "kv"]


def wanted(args: Any) -> Iterator[tuple[dict[str, Any], Job]]:
    kinds = ["azure-conv-like", "burstgpt-like", "decode-heavy", *(["trace"] if args.trace else [])]
    for kv in ("scarce", "ample"):
        for lengths in kinds:
            job = replace(
                lengths_job(lengths, args.trace, args.num_prompts),
                predictions="noise:0.5",
                enable_prefix_caching=True,
            )
            if kv == "scarce":
                job = replace(job, kv_blocks=scarce_blocks(job))
            most = capacity(job)
            for load in LOADS:
                for seed in args.seeds:
                    cell = replace(job, request_rate=round(load * most, 4), seed=seed)
                    for arm in ARMS:
                        key = (lengths, load, kv, arm.name, seed)
                        yield dict(zip(KEYS, key, strict=True)), arm.job(cell)


def best(frame: pd.DataFrame) -> pd.DataFrame:
    """A row per regime: default's pressure, the best arm for mean JCT and for the longest gap."""
    default = frame[frame.arm == "default"].groupby(CELL, sort=False)
    found = default[["waiting_mean", "kv_peak_share", "preemptions"]].mean()
    for metric in ("e2e_mean_ms", "max_gap_p99_ms"):
        change = relative(frame, CELL, metric)
        for regime, arms in change.groupby(level=CELL, sort=False):
            own = arms.droplevel(CELL)
            name = own["mean"].idxmin()
            # Better at every seed, or it is no winner.
            won = own.high[name] < 0
            found.loc[regime, f"best_{metric}"] = name if won else "no clear winner"
            found.loc[regime, f"change_{metric}"] = own["mean"][name]
    return found.reset_index()


def draw(table: Table, out: Path) -> None:
    """The map: regimes as cells, named after the winner, shaded by the change of mean JCT."""
    from lab3.figures.style import footer, new_figure, save

    frame = table.read()
    if frame.empty:
        return
    found = best(frame)
    found.to_csv(out / "map.csv", index=False, float_format="%.4g")
    metrics = (("e2e_mean_ms", "lowest mean JCT"), ("max_gap_p99_ms", "smallest longest gap (P99)"))
    figure, axes = new_figure(
        1, 2, 12.0, 0.7 * found[["lengths", "kv"]].drop_duplicates().shape[0] + 2
    )
    for panel, (metric, title) in zip(axes[0], metrics, strict=True):
        rows = list(dict.fromkeys(found.lengths + ", KV " + found.kv))
        loads = list(dict.fromkeys(found.load))
        grid = found.assign(row=found.lengths + ", KV " + found.kv).set_index(["row", "load"])
        values = grid[f"change_{metric}"].unstack().reindex(index=rows, columns=loads)
        panel.imshow(100 * values.clip(-0.6, 0), cmap="Blues_r", aspect="auto", vmin=-80, vmax=0)
        for (row, load), cell in grid.iterrows():
            text = f"{cell[f'best_{metric}']}\n{cell[f'change_{metric}']:+.0%}"
            text += f"  queue {cell.waiting_mean:.0f}, KV {cell.kv_peak_share:.0%}"
            panel.text(
                loads.index(load), rows.index(row), text, ha="center", va="center", fontsize=6
            )
        panel.set_xticks(range(len(loads)), [f"load {load}" for load in loads])
        panel.set_yticks(range(len(rows)), rows, fontsize=7)
        panel.set_title(title)
    footer(
        figure,
        [
            "SIMULATED: roofline, Qwen2.5-7B on A100-80G; prefix caching on, predictions with "
            "noise 0.5 x L; queue and KV peak are the default's; change against the default.",
        ],
    )
    save(figure, out, "map")


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--trace", type=Path, help="CSV trace whose lengths are tried as well")
    args = parser.parse_args()
    table = Table(args.out / "map_runs.csv", KEYS)
    complete = table.fill(list(wanted(args)), args.processes, args.limit_s)
    write_setup(
        args.out / "map.json",
        {"experiment": "map"},
        lengths_job("decode-heavy", None, args.num_prompts),
    )
    draw(table, args.out)
    return 0 if complete else 3


if __name__ == "__main__":
    sys.exit(main())

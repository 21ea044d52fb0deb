"""Experiment 3: which policy where. python -m experiments.sim_map [--trace CSV]

Kinds of lengths x load x KV pool on an A100-80G with Qwen2.5-7B: the policy with the lowest mean
JCT and the one with the smallest longest gap, with the default's queue depth and KV pressure, which
say what regime it is. A difference smaller than the spread of the seeds counts as none. Writes
map.csv, map_best.csv, map.json and map.png/.svg/.pdf into --out.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.common import Arm, Experiment, capacity
from experiments.report import NO_WINNER, balanced, percent, seeds_text, winners, write
from experiments.sim_dla import lengths_job, scarce_blocks
from lab3.sim.jobs import Job
from lab3.text_table import Cell, Table, number, share

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
CELL = ("lengths", "load", "kv")


def wanted(args: Any) -> Iterator[tuple[dict[str, Any], Job]]:
    kinds = ["azure-conv-like", "burstgpt-like", "decode-heavy"]
    kinds += [args.trace.stem] if args.trace else []
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


METRICS = (("e2e_mean_ms", "lowest mean JCT"), ("max_gap_p99_ms", "smallest longest gap (P99)"))


def best(frame: pd.DataFrame) -> pd.DataFrame:
    """A row per regime: default's pressure, the best arm for mean JCT and for the longest gap."""
    default = frame[frame.arm == "default"].groupby(list(CELL), sort=False)
    found = default[["waiting_mean", "kv_peak_share", "preemptions"]].mean()
    for metric, _ in METRICS:
        own = winners(frame, CELL, metric)
        found[f"best_{metric}"], found[f"change_{metric}"] = own.arm, own.change
    return found.reset_index()


def map_table(found: pd.DataFrame) -> Table:
    """The map as a table."""
    rows = []
    for row in found.itertuples():
        texts = [row.lengths, row.kv, row.load, f"{row.waiting_mean:.1f}"]
        texts += [share(row.kv_peak_share), number(row.preemptions)]
        for metric, _ in METRICS:
            name, change = getattr(row, f"best_{metric}"), getattr(row, f"change_{metric}")
            texts.append(name if name == NO_WINNER else f"{name} {percent(change)}")
        rows.append(tuple(map(Cell, texts)))
    headers = [("lengths", ""), ("KV", ""), ("load", ""), ("queue", "mean"), ("KV peak", "")]
    headers += [("preemptions", ""), *((title, "") for _, title in METRICS)]
    return Table("Best policy per regime, simulated", tuple(headers), tuple(rows))


def show(rows: pd.DataFrame, out: Path) -> None:
    """map_best.csv, map.md and the figure."""
    frame = balanced(rows, CELL)
    found = best(frame)
    found.to_csv(out / "map_best.csv", index=False, float_format="%.4g")
    notes = [
        "SIMULATED: roofline, Qwen2.5-7B on A100-80G; prefix caching on, predictions with noise "
        f"0.5 x L; {seeds_text(frame, CELL)}. Queue, KV peak and preemptions are the default's.",
        "A winner is better than the default at every seed, by 2 % at least.",
    ]
    write(out / "map.md", [map_table(found)], notes)
    draw(found, notes, out)


def draw(found: pd.DataFrame, notes: list[str], out: Path) -> None:
    """The map: regimes as cells, named after the winner, shaded by the change it brings."""
    from lab3.figures.style import footer, new_figure, save

    found = found.assign(row=found.lengths + "\nKV " + found.kv)
    rows, loads = (list(dict.fromkeys(found[name])) for name in ("row", "load"))
    figure, axes = new_figure(1, 2, 12.0, 0.62 * len(rows) + 1.6, sharey=True)
    grid = found.set_index(["row", "load"])
    for panel, (metric, title) in zip(axes[0], METRICS, strict=True):
        won = grid[f"best_{metric}"] != NO_WINNER
        values = (100 * grid[f"change_{metric}"]).where(won, 0).unstack()
        values = values.reindex(index=rows, columns=loads)
        panel.grid(False)
        image = panel.imshow(values, cmap="Blues_r", aspect="auto", vmin=-100, vmax=0)
        for (row, load), cell in grid.iterrows():
            name, change = cell[f"best_{metric}"], cell[f"change_{metric}"]
            text = name if name == NO_WINNER else f"{name} {percent(change)}"
            if panel is axes[0, 0]:
                text += f"\nqueue {cell.waiting_mean:.0f}, KV {cell.kv_peak_share:.0%}"
            dark = name != NO_WINNER and change < -0.55
            panel.text(
                loads.index(load),
                rows.index(row),
                text,
                ha="center",
                va="center",
                fontsize=7.5,
                color="white" if dark else "black",
            )
        panel.set_xticks(range(len(loads)), [f"load {load}" for load in loads])
        panel.set_yticks(range(len(rows)), rows, fontsize=8)
        panel.set_title(title)
    bar = figure.colorbar(image, ax=axes, shrink=0.8)
    bar.set_label("change against vLLM's default (%)", fontsize=8)
    footer(figure, notes)
    save(figure, out, "map")


EXPERIMENT = Experiment(
    name="map",
    keys=KEYS,
    base=lambda args: lengths_job("burstgpt-like", None, args.num_prompts),
    wanted=wanted,
    show=show,
)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main(__doc__, with_trace=True))

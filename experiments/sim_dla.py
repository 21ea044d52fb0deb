"""Experiment 2: DLA's table with the real scheduler. python -m experiments.sim_dla [--trace CSV]

Victim x admission and controls, each against vLLM's default on the same requests: three kinds of
lengths, load around capacity, KV scarce and ample, prefix caching off and on; then predictions
with noise, bias and gaps. ``--trace`` takes the
lengths of a downloaded trace instead of azure-conv-like ones. Qwen2.5-7B on an
A100-80G, three seeds. Writes dla.csv, dla.json and dla.png/.svg/.pdf into --out.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.common import Arm, Experiment, capacity
from experiments.report import (
    LEAST,
    balanced,
    cells,
    change_cell,
    percent,
    relative,
    seeds_text,
    write,
)
from lab3.sim.jobs import Job
from lab3.text_table import NOTHING, Cell, Table, number

VICTIMS = ("upstream", "remaining", "remaining_per_context", "least_computed")
ADMISSIONS = ("off", "reserve", "future_peak")
ARMS = (
    Arm("default"),
    *(
        Arm(f"{victim}+{admission}", "DLAScheduler", {"victim": victim, "admission": admission})
        for victim in VICTIMS
        for admission in ADMISSIONS
        if (victim, admission) != ("upstream", "off")
    ),
    Arm("dlasrpt", "DLASRPTScheduler"),
    Arm("sjf", "SJFScheduler"),
    Arm("watermark 0.03", options={"watermark": 0.03}),
    Arm("reserve_full_isl off", options={"reserve_full_isl": False}),
)
PREDICTED_ARMS = (
    "remaining+off",
    "remaining+reserve",
    "remaining_per_context+future_peak",
    "dlasrpt",
)
CONTROLS = (
    "default",
    "remaining+off",
    "remaining+reserve",
    "remaining_per_context+off",
    "remaining_per_context+future_peak",
    "dlasrpt",
    "sjf",
    "watermark 0.03",
    "reserve_full_isl off",
)
LOADED_ARMS = (
    "default",
    "remaining+off",
    "remaining+reserve",
    "remaining_per_context+future_peak",
    "dlasrpt",
    "watermark 0.03",
)
PREDICTIONS = ("noise:0.5", "noise:1", "bias:1.5", "oracle,missing:0.3")
KEYS = ("lengths", "load", "kv", "caching", "predictions", "arm", "seed")
DECODE_HEAVY_SHARE = 0.6
"""Of --num-prompts: these requests take the most steps by far."""

SCARCE_REQUESTS = 20
"""A scarce pool holds so many average requests at their full length."""


def lengths_job(lengths: str, trace: Path | None, num_prompts: int) -> Job:
    """Requests of one kind of lengths, on the default engine."""
    if lengths == "decode-heavy":
        num_prompts = round(DECODE_HEAVY_SHARE * num_prompts)
    job = Job(num_prompts=num_prompts, max_output_tokens=2048, max_model_len=16_384)
    if trace and lengths == trace.stem:
        return replace(job, trace=str(trace), resample=True)
    return replace(job, shape=lengths)


def scarce_blocks(job: Job) -> int:
    """A KV pool for SCARCE_REQUESTS average requests, and for the longest one in any case."""
    workload = replace(job, seed=0).workload()
    total = np.array(workload.input_tokens) + np.array(workload.output_tokens)
    tokens = max(SCARCE_REQUESTS * total.mean(), 1.2 * total.max())
    return int(tokens) // job.block_size + 2


def plan() -> Iterator[tuple[float, str, bool, str, tuple[str, ...]]]:
    """(load, kv, caching, predictions, arms), the most telling first."""
    yield 1.0, "scarce", False, "oracle", tuple(arm.name for arm in ARMS)
    yield 1.0, "scarce", True, "oracle", CONTROLS
    for predictions in PREDICTIONS:
        yield 1.0, "scarce", False, predictions, PREDICTED_ARMS
    yield 1.2, "scarce", False, "oracle", LOADED_ARMS
    yield 0.8, "scarce", False, "oracle", LOADED_ARMS
    yield 1.0, "ample", False, "oracle", LOADED_ARMS


def wanted(args: Any) -> Iterator[tuple[dict[str, Any], Job]]:
    kinds = [args.trace.stem if args.trace else "azure-conv-like", "burstgpt-like", "decode-heavy"]
    arms, capacities = {arm.name: arm for arm in ARMS}, {}
    for load, kv, caching, predictions, names in plan():
        for lengths in kinds:
            job = lengths_job(lengths, args.trace, args.num_prompts)
            if kv == "scarce":
                job = replace(job, kv_blocks=scarce_blocks(job))
            if (lengths, kv) not in capacities:
                capacities[lengths, kv] = capacity(job)
            for seed in args.seeds:
                cell = replace(
                    job,
                    request_rate=round(load * capacities[lengths, kv], 4),
                    enable_prefix_caching=caching,
                    predictions=predictions,
                    seed=seed,
                )
                for name in names:
                    key = (lengths, load, kv, caching, predictions, name, seed)
                    yield dict(zip(KEYS, key, strict=True)), arms[name].job(cell)


CELL = ("lengths", "load", "kv", "caching", "predictions")


@dataclass(frozen=True)
class Claim:
    """What was published of an arm: its change of a metric against evicting the last admitted."""

    text: str
    arm: str
    metric: str
    published: float
    predictions: str = "oracle"


CLAIMS = (
    Claim("victim only: JCT P50", "remaining+off", "e2e_p50_ms", -0.23),
    Claim("victim only: preemptions", "remaining+off", "preemptions", -0.48),
    Claim("victim only: recomputed tokens", "remaining+off", "recomputed_tokens", -0.56),
    Claim("victim + admission: JCT P50", "remaining+reserve", "e2e_p50_ms", -0.47),
    Claim("victim + admission: preemptions", "remaining+reserve", "preemptions", -0.81),
    Claim("victim + admission: recomputed tokens", "remaining+reserve", "recomputed_tokens", -0.77),
    Claim("same, noise 1 x L: JCT P50", "remaining+reserve", "e2e_p50_ms", -0.34, "noise:1"),
    Claim("same, bias x1.5: JCT P50", "remaining+reserve", "e2e_p50_ms", -0.47, "bias:1.5"),
)
"""DLA's own numbers: a simulation of a block pool on 10,000 BurstGPT requests, prefix caching not
modelled. For bias it says "harmless", which is read as its number with true lengths."""


def verdict(change: float, worst: float, published: float) -> str:
    """ "holds" from half the published change on, at every seed better than the default."""
    if math.isnan(change):
        return "nothing to save"
    if worst >= 0 or change > -LEAST:
        return "no"
    return "holds" if change <= published / 2 else "smaller"


def claims_table(frame: pd.DataFrame, load: str = "1.0") -> Table:
    """Each published claim in each regime: what was found, and whether it holds."""
    regimes = list(cells(frame[(frame.load == load) & (frame.kv == "scarce")], REGIME))
    changes = {m: relative(frame, CELL, m) for m in dict.fromkeys(c.metric for c in CLAIMS)}
    rows = []
    for claim in CLAIMS:
        row = [Cell(claim.text), Cell(percent(claim.published))]
        for lengths, caching in regimes:
            key = (lengths, load, "scarce", caching, claim.predictions, claim.arm)
            if key not in changes[claim.metric].index:
                row.append(Cell(NOTHING))
                continue
            mean, _, high = changes[claim.metric].loc[key]
            said = verdict(mean, high, claim.published)
            row.append(Cell(said if math.isnan(mean) else f"{percent(mean)}: {said}"))
        rows.append(tuple(row))
    return Table(
        f"Published claims, load {load}, KV scarce",
        (("claim", ""), ("published", ""), *(regime_header(*regime) for regime in regimes)),
        tuple(rows),
    )


REGIME = ("lengths", "caching")


def regime_header(lengths: str, caching: str) -> tuple[str, str]:
    return lengths, f"caching {'on' if caching == 'True' else 'off'}"


def change_table(
    frame: pd.DataFrame,
    metric: str,
    title: str,
    columns: Sequence[tuple[tuple[str, str], tuple]],
    arms: Sequence[str],
) -> Table:
    """Change of ``metric`` for each arm; ``columns``: a header and the cell it stands for."""
    changes = relative(frame, CELL, metric)
    rows = [
        (Cell(arm), *(change_cell(changes, (*cell, arm)) for _, cell in columns))
        for arm in arms
        if any((*cell, arm) in changes.index for _, cell in columns)
    ]
    return Table(title, (("arm", ""), *(header for header, _ in columns)), tuple(rows))


FULL = (
    ("e2e_mean_ms", "JCT mean, s", 1e-3),
    ("e2e_p50_ms", "JCT P50, s", 1e-3),
    ("e2e_p99_ms", "JCT P99, s", 1e-3),
    ("ttft_p50_ms", "TTFT P50, s", 1e-3),
    ("ttft_p99_ms", "TTFT P99, s", 1e-3),
    ("output_tokens_per_s", "output tok/s", 1),
    ("preemptions", "preemptions", 1),
    ("recompute_tax", "recompute tax, %", 100),
    ("max_gap_p99_ms", "longest gap P99, s", 1e-3),
    ("e2e_bound_fraction", "fraction of bound E2E, %", 100),
)


def full_table(frame: pd.DataFrame, cell: tuple) -> Table:
    """Every column of every arm in one regime, means over the seeds."""
    lengths, load, kv, caching, predictions = cell
    part = frame
    for name, value in zip(CELL, cell, strict=True):
        part = part[part[name] == value]
    values = part.groupby("arm", sort=False).mean(numeric_only=True)
    rows = tuple(
        (Cell(str(arm)), *(Cell(number(own[metric] * scale)) for metric, _, scale in FULL))
        for arm, own in values.iterrows()
    )
    _, caching = regime_header(lengths, caching)
    rate, blocks = part.request_rate.iloc[0], part.kv_blocks.iloc[0]
    title = f"{lengths}, load {load} ({rate:.3g} requests/s), KV {kv} ({blocks:,} blocks), "
    title += f"{caching}, predictions {predictions}"
    return Table(title, (("arm", ""), *((name, "") for _, name, _ in FULL)), rows)


def with_defaults(rows: pd.DataFrame) -> pd.DataFrame:
    """``rows`` and the default's for every kind of prediction: it reads none."""
    same = rows[(rows.arm == "default") & (rows.predictions == "oracle")]
    kinds = [kind for kind in rows.predictions.unique() if kind != "oracle"]
    cell = [name for name in CELL if name != "predictions"]
    wanted = rows[rows.predictions.isin(kinds)][cell].drop_duplicates()
    copies = [same.assign(predictions=kind).merge(wanted, on=cell) for kind in kinds]
    return pd.concat([rows, *copies], ignore_index=True)


def show(rows: pd.DataFrame, out: Path) -> None:
    """dla.md (everything), dla_claims.md, dla_jct.md, dla_predictions.md, dla_load.md, figure."""
    frame = balanced(with_defaults(rows), CELL)
    kinds = list(dict.fromkeys(frame.lengths))
    arms = [arm.name for arm in ARMS[1:]]
    note = (
        f"SIMULATED: roofline, Qwen2.5-7B on A100-80G; changes against vLLM's default at the same "
        f"seed, mean and range of {seeds_text(frame, CELL)}."
    )
    rule = (
        "Holds: at least half the published change, and better than the default at every seed; "
        "smaller: better at every seed, but less; no: not better at some seed, or by under 2 %."
    )
    write(out / "dla_claims.md", [claims_table(frame)], [note, rule])
    regimes = [(kind, caching) for caching in ("False", "True") for kind in kinds]
    at_one = [
        (regime_header(kind, caching), (kind, "1.0", "scarce", caching, "oracle"))
        for kind, caching in regimes
    ]
    title = "mean JCT, load 1.0, KV scarce, oracle predictions"
    write(out / "dla_jct.md", [change_table(frame, "e2e_mean_ms", title, at_one, arms)], [note])
    noisy = [
        change_table(
            frame,
            "e2e_mean_ms",
            f"mean JCT of {kind}, load 1.0, KV scarce, caching off",
            [
                ((text, ""), (kind, "1.0", "scarce", "False", text))
                for text in ("oracle", *PREDICTIONS)
            ],
            PREDICTED_ARMS,
        )
        for kind in kinds
    ]
    write(out / "dla_predictions.md", noisy, [note])
    loads = (("0.8", "scarce"), ("1.0", "scarce"), ("1.2", "scarce"), ("1.0", "ample"))
    loaded = [
        change_table(
            frame,
            "e2e_mean_ms",
            f"mean JCT of {kind}, caching off, oracle predictions",
            [
                ((f"load {load}", f"KV {kv}"), (kind, load, kv, "False", "oracle"))
                for load, kv in loads
            ],
            LOADED_ARMS[1:],
        )
        for kind in kinds
    ]
    write(out / "dla_load.md", loaded, [note])
    write(out / "dla.md", [full_table(frame, cell) for cell in cells(frame, CELL)], [note])
    draw(frame, out)


def draw(frame: pd.DataFrame, out: Path) -> None:
    """Change of mean and P99 JCT against the default, an arm a row, lengths and caching a panel."""
    from lab3.figures.style import footer, legend_above, log_axis, new_figure, save

    frame = frame[(frame.load == "1.0") & (frame.kv == "scarce") & (frame.predictions == "oracle")]
    kinds, names = list(dict.fromkeys(frame.lengths)), [arm.name for arm in ARMS[1:]]
    figure, axes = new_figure(2, len(kinds), 3.6 * len(kinds), 8.0, sharex=True, sharey=True)
    metrics = (
        ("e2e_mean_ms", "mean JCT", "#0072B2", "o"),
        ("e2e_p99_ms", "P99 JCT", "#D55E00", "D"),
    )
    for panel, (caching, lengths) in zip(
        axes.flat, itertools.product(("False", "True"), kinds), strict=True
    ):
        part = frame[(frame.lengths == lengths) & (frame.caching == caching)]
        for (metric, label, colour, marker), shift in zip(metrics, (-0.17, 0.17), strict=True):
            ratio = 1 + relative(part, REGIME, metric).droplevel([0, 1]).reindex(names)
            panel.errorbar(
                ratio["mean"],
                np.arange(len(names)) + shift,
                xerr=[ratio["mean"] - ratio.low, ratio.high - ratio["mean"]],
                ls="",
                marker=marker,
                ms=4,
                color=colour,
                label=label,
            )
        panel.axvline(1, color="black", lw=0.8)
        panel.set_title(", ".join(regime_header(lengths, caching)))
        panel.set_yticks(range(len(names)), names, fontsize=7)
        log_axis(panel, "x")
    axes[0, 0].invert_yaxis()
    legend_above(figure, axes[0, 0].get_legend_handles_labels()[0])
    for panel in axes[-1]:
        panel.set_xlabel("ratio to vLLM's default")
    footer(
        figure,
        [
            "SIMULATED: roofline, Qwen2.5-7B on A100-80G; load 1.0, KV scarce, oracle predictions; "
            f"mean and range of {seeds_text(frame, CELL)}; logarithmic. Empty rows were not run.",
        ],
    )
    save(figure, out, "dla")


EXPERIMENT = Experiment(
    name="dla",
    keys=KEYS,
    base=lambda args: lengths_job("burstgpt-like", None, args.num_prompts),
    wanted=wanted,
    show=show,
)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main(__doc__, with_trace=True))

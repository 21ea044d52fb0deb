"""Experiment 2: DLA's table with the real scheduler. python -m experiments.sim_dla [--trace CSV]

Victim x admission and controls, each against vLLM's default on the same requests: three kinds of
lengths, load around capacity, KV scarce and ample, prefix caching off and on; then predictions
with noise, bias and gaps. ``--trace`` takes the
lengths of a downloaded trace instead of azure-conv-like ones. Qwen2.5-7B on an
A100-80G, three seeds. Writes dla.csv, dla.json and dla.png/.svg/.pdf into --out.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from experiments.common import Arm, Table, capacity, options, relative, write_setup
from lab3.sim.jobs import Job

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
PREDICTIONS = ("noise:0.5", "noise:1", "bias:1.5", "oracle,missing:0.3")
KEYS = ("lengths", "load", "kv", "caching", "predictions", "arm", "seed")
SCARCE_REQUESTS = 20
"""A scarce pool holds so many average requests at their full length."""


def lengths_job(lengths: str, trace: Path | None, num_prompts: int) -> Job:
    """Requests of one kind of lengths, on the default engine."""
    job = Job(num_prompts=num_prompts, max_output_tokens=2048, max_model_len=16_384)
    if lengths == "trace":
        return replace(job, trace=str(trace), resample=True)
    return replace(job, shape=lengths)


def scarce_blocks(job: Job) -> int:
    """A KV pool for SCARCE_REQUESTS average requests, and for the longest one in any case."""
    workload = replace(job, seed=0).workload()
    total = np.array(workload.input_tokens) + np.array(workload.output_tokens)
    tokens = max(SCARCE_REQUESTS * total.mean(), 1.2 * total.max())
    return int(tokens) // job.block_size + 2


def cells() -> Iterator[tuple[float, str, bool, str, tuple[str, ...]]]:
    """(load, kv, caching, predictions, arms), the most telling first."""
    names = tuple(arm.name for arm in ARMS)
    yield 1.0, "scarce", False, "oracle", names
    yield 1.0, "scarce", True, "oracle", names
    for predictions in PREDICTIONS:
        yield 1.0, "scarce", False, predictions, ("default", *PREDICTED_ARMS)
    yield 1.2, "scarce", False, "oracle", names
    yield 0.8, "scarce", False, "oracle", names
    yield 1.0, "ample", False, "oracle", names


def wanted(args: Any) -> Iterator[tuple[dict[str, Any], Job]]:
    kinds = ["trace" if args.trace else "azure-conv-like", "burstgpt-like", "decode-heavy"]
    arms, capacities = {arm.name: arm for arm in ARMS}, {}
    for load, kv, caching, predictions, names in cells():
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


def draw(table: Table, out: Path) -> None:
    """Change of mean and P50 JCT against the default, an arm a row, lengths and caching a panel."""
    from lab3.figures.style import footer, new_figure, save

    frame = table.read()
    frame = frame[(frame.load == "1.0") & (frame.kv == "scarce") & (frame.predictions == "oracle")]
    if frame.empty:
        return
    kinds, names = list(dict.fromkeys(frame.lengths)), [arm.name for arm in ARMS[1:]]
    figure, axes = new_figure(2, len(kinds), 3.6 * len(kinds), 8.0, sharey=True)
    for row, caching in enumerate(("False", "True")):
        for column, lengths in enumerate(kinds):
            panel = axes[row, column]
            part = frame[(frame.lengths == lengths) & (frame.caching == caching)]
            for metric, colour, shift in (
                ("e2e_mean_ms", "#0072B2", -0.15),
                ("e2e_p99_ms", "#D55E00", 0.15),
            ):
                change = 100 * relative(part, ("lengths", "caching"), metric).droplevel([0, 1])
                change = change.reindex(names)
                panel.errorbar(
                    change["mean"],
                    np.arange(len(names)) + shift,
                    xerr=[change["mean"] - change.low, change.high - change["mean"]],
                    ls="",
                    marker="o",
                    ms=4,
                    color=colour,
                    label={"e2e_mean_ms": "mean JCT", "e2e_p99_ms": "P99 JCT"}[metric],
                )
            panel.axvline(0, color="0.5", lw=0.8)
            panel.set_xscale("symlog", linthresh=100)
            panel.set_title(
                f"{lengths}, prefix caching {'on' if caching == 'True' else 'off'}", fontsize=8
            )
            panel.set_yticks(range(len(names)), names, fontsize=7)
    axes[0, 0].invert_yaxis()
    axes[0, 0].legend(fontsize=7)
    axes[1, 0].set_xlabel("change against vLLM's default (%)")
    footer(
        figure,
        [
            "SIMULATED: roofline, Qwen2.5-7B on A100-80G; load 1.0, KV scarce, oracle predictions; "
            f"mean and range of {frame.seed.nunique()} seeds.",
        ],
    )
    save(figure, out, "dla")


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--trace", type=Path, help="CSV trace whose lengths are tried as well")
    args = parser.parse_args()
    table = Table(args.out / "dla.csv", KEYS)
    complete = table.fill(list(wanted(args)), args.processes, args.limit_s)
    write_setup(
        args.out / "dla.json",
        {"experiment": "DLA"},
        lengths_job("decode-heavy", None, args.num_prompts),
    )
    draw(table, args.out)
    return 0 if complete else 3


if __name__ == "__main__":
    sys.exit(main())

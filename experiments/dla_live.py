"""What the simulator says about a live DLA comparison: python -m experiments.dla_live RUNS

Fits the step-time model on the recorded steps of the Passthrough runs and simulates every other
arm with it: its requests, scheduler, settings, KV pool, predictions and vLLM options, as its
run.json has them. Writes simulated.csv (a row per arm: measured and simulated) and the fitted cost
model (cost.json) into --out, and prints the changes against the default. --cost-file takes the
model of another comparison on the same machine. Exit code 2 when there is no Passthrough run with a
step record, or nothing to predict.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.common import measure
from experiments.validate_live import job_of
from lab3.bench_file import ResultError
from lab3.calibrate import calibrate, report
from lab3.results import Run, load_runs
from lab3.sim.cost_model import save_cost_model
from lab3.summary import arm_order, runs_table, summary_table

FITTED_ON = "passthrough"
BASELINE = "default"
METRICS = (
    "e2e_mean_ms",
    "e2e_p50_ms",
    "e2e_p99_ms",
    "ttft_mean_ms",
    "max_gap_p99_ms",
    "output_tokens_per_s",
    "preemptions",
    "recompute_tax",
)
SHOWN = ("e2e_mean_ms", "e2e_p50_ms", "e2e_p99_ms")


def one_run_an_arm(runs: Sequence[Run]) -> list[Run]:
    """The first repeat of each arm: all repeats of an arm are the same simulation."""
    arms: dict[str, Run] = {}
    for run in sorted(runs, key=arm_order):
        arms.setdefault(run.info.arm, run)
    return list(arms.values())


def fitted(runs: Sequence[Run], cost_file: Path) -> str:
    """Fit the step times of the Passthrough runs, save the model, say how well it fits."""
    folders = [run.info.folder for run in runs if run.info.arm == FITTED_ON]
    if not folders:
        raise ResultError("needs a Passthrough run to fit step times on, or --cost-file")
    model, steps = calibrate(folders)
    save_cost_model(model, cost_file)
    return report(model, steps)


def simulated(runs: Sequence[Run], cost_file: Path) -> pd.DataFrame:
    """``METRICS`` of each arm on the fitted engine; a row an arm, with arm and label."""
    rows: list[dict[str, Any]] = []
    for run in one_run_an_arm(runs):
        found = measure(job_of(run.info.raw, cost_file), METRICS)
        rows.append(
            {"arm": run.info.arm, "label": run.info.label} | {name: found[name] for name in METRICS}
        )
    return pd.DataFrame(rows)


def beside(measured: pd.DataFrame, made: pd.DataFrame) -> pd.DataFrame:
    """Measured medians and simulated values side by side, each also as ratio to the default's.

    Columns: arm, label, fitted (whether the model was fitted on this arm), and for each metric
    ``measured_X``, ``simulated_X`` and, for the times, ``measured_ratio_X``, ``simulated_ratio_X``.
    """
    live = measured.set_index("arm")
    sim = made.set_index("arm")
    table = made[["arm", "label"]].assign(fitted=made.arm == FITTED_ON)
    for metric in METRICS:
        table[f"measured_{metric}"] = live[metric].reindex(made.arm).to_numpy()
        table[f"simulated_{metric}"] = sim[metric].to_numpy()
    if BASELINE in sim.index and BASELINE in live.index:
        for metric in SHOWN:
            for source, frame in (("measured", live), ("simulated", sim)):
                ratio = table[f"{source}_{metric}"] / frame.loc[BASELINE, metric]
                table[f"{source}_ratio_{metric}"] = ratio
    return table


def printed(table: pd.DataFrame) -> str:
    """The ratios to the default and the preemptions, for people."""
    columns = {"label": "strategy"}
    for metric in SHOWN:
        name = metric.removesuffix("_ms").replace("e2e_", "JCT ")
        columns |= {f"measured_ratio_{metric}": name, f"simulated_ratio_{metric}": f"{name} (sim)"}
    columns |= {"measured_preemptions": "preempted", "simulated_preemptions": "preempted (sim)"}
    known = {name: shown for name, shown in columns.items() if name in table}
    ratios = {s: "{:.2f}x".format for n, s in known.items() if "_ratio_" in n}
    counts = {s: "{:.0f}".format for n, s in known.items() if n.endswith("preemptions")}
    shown = table[list(known)].rename(columns=known)
    return shown.to_string(index=False, formatters=ratios | counts)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs_dir", type=Path, metavar="RUNS")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--task", default="dla")
    parser.add_argument("--cost-file", type=Path, help="fitted before: fit nothing")
    args = parser.parse_args(argv)
    cost_file = args.cost_file or args.out / "cost.json"
    args.out.mkdir(parents=True, exist_ok=True)
    try:
        runs = [run for run in load_runs(args.runs_dir, args.task)[0] if run.valid]
        if not args.cost_file:
            print(fitted(runs, cost_file))
        if all(run.info.arm == FITTED_ON for run in runs):
            raise ResultError(f"{args.runs_dir} has no run to predict")
        table = beside(summary_table(runs_table(runs)), simulated(runs, cost_file))
    except (ResultError, ValueError) as error:
        print(f"experiments.dla_live: {error}", file=sys.stderr)
        return 2
    table.to_csv(args.out / "simulated.csv", index=False, float_format="%.6g")
    print("\nSIMULATED beside measured; step times fitted on Passthrough alone")
    print(printed(table))
    return 0


if __name__ == "__main__":
    sys.exit(main())

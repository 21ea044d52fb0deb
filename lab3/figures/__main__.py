"""Command line: python -m lab3.figures RUNS_DIR --out DIR --task task3

task2 draws A1 and A2, dla its own figure and 3B, any other task 3A and 3B. Exit code 1 when a run
had to be left out, 2 when there is nothing to draw.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from lab3.bench_file import ResultError
from lab3.figures import cdf, composition, dla
from lab3.figures import sweep as sweep_figures
from lab3.figures.style import save
from lab3.results import Run, load_runs
from lab3.summary import arm_order, runs_table, summary_table
from lab3.sweep import sweep_values


def draw_sweep(runs: Sequence[Run], out: Path) -> list[Path]:
    """A1 (client; engine as well where every run has a step record) and A2."""
    rows = runs_table(runs)
    summary, single = sweep_values(summary_table(rows)), sweep_values(rows)
    if summary.empty:
        raise ResultError("these runs have no max_num_batched_tokens to draw over")
    if summary.arm.nunique() > 1:
        raise ResultError(f"one arm at a time: {', '.join(summary.arm.unique())} (use --arms)")
    infos = [run.info for run in runs]
    paths = save(sweep_figures.latency_figure(summary, single, infos), out, "a1_latency")
    if summary.engine_itl_p50_ms.notna().all():
        figure = sweep_figures.latency_figure(summary, single, infos, "engine_")
        paths += save(figure, out, "a1_latency_engine")
    return paths + save(
        sweep_figures.throughput_figure(summary, single, infos), out, "a2_throughput"
    )


def draw_strategies(runs: Sequence[Run], out: Path, seconds: float | None) -> list[Path]:
    """3A as CDF and as tail, both again from the engine's view, and 3B, as far as there is data."""
    paths = save(cdf.cdf_figure(runs), out, "fig3a_cdf")
    paths += save(cdf.tail_figure(runs), out, "fig3a_tail")
    if any(run.steps is not None for run in runs):
        paths += save(cdf.cdf_figure(runs, cdf.ENGINE), out, "fig3a_cdf_engine")
        paths += save(cdf.tail_figure(runs, cdf.ENGINE), out, "fig3a_tail_engine")
        paths += save(composition.composition_figure(runs, seconds), out, "fig3b_steps")
    return paths


def draw_dla(runs: Sequence[Run], out: Path, seconds: float | None) -> list[Path]:
    """JCT and preemptions, with what the simulator says where `out` has its simulated.csv; 3B."""
    table = out / dla.SIMULATED_FILE
    simulated = pd.read_csv(table) if table.exists() else None
    paths = save(dla.dla_figure(runs, simulated), out, "dla_jct")
    if any(run.steps is not None for run in runs):
        paths += save(composition.composition_figure(runs, seconds), out, "dla_steps")
    return paths


def main(argv: Sequence[str] | None = None) -> int:
    """Draws what the task has figures for; returns the exit code."""
    args = _parser().parse_args(argv)
    try:
        runs, failed = load_runs(args.runs_dir, args.task)
        left_out = [f"{f.info.folder.name}: {f.reason}" for f in failed if not f.refused]
        left_out += [f"{r.info.folder.name}: {'; '.join(r.problems)}" for r in runs if r.problems]
        runs = [run for run in runs if run.valid and (not args.arms or run.info.arm in args.arms)]
        for line in left_out:
            print(f"lab3.figures: left out {line}", file=sys.stderr)
        if not runs:
            raise ResultError("no valid run to draw")
        runs.sort(key=arm_order)
        if args.task == "task2":
            paths = draw_sweep(runs, args.out)
        elif args.task == "dla":
            paths = draw_dla(runs, args.out, args.seconds)
        else:
            paths = draw_strategies(runs, args.out, args.seconds)
    except ResultError as error:
        print(f"lab3.figures: {error}", file=sys.stderr)
        return 2
    print("\n".join(str(path) for path in paths if path.suffix == ".png"))
    return 1 if left_out else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="lab3.figures", description="Figures of a task.")
    parser.add_argument("runs_dir", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--task", default="task3", help="task2 for the sweep, task3, dla, ...")
    parser.add_argument("--arms", nargs="*", default=[], help="draw only these arms")
    parser.add_argument("--seconds", type=float, help="time span of figure 3B")
    return parser


if __name__ == "__main__":
    sys.exit(main())

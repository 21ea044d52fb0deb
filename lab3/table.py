"""Tables of a task from its run folders: python -m lab3.table RUNS_DIR --out DIR --task task3

Writes runs.csv (a row per run), summary.csv (a row per arm, medians over repeats), table.md and
table.txt (the lab's tables), and prints the last. Can be run again at any time: it only reads.
Exit code 1 when an arm is missing, failed or has failed requests (what there is, is tabled and
marked), 2 when there is nothing to table.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from lab3 import sweep
from lab3.bench_file import ResultError
from lab3.captions import counter_lines, fidelity_lines, kv_line, provenance_line
from lab3.results import FailedRun, Run, RunInfo, check_against_vllm, load_runs
from lab3.summary import (
    Goals,
    missing_repeats,
    runs_table,
    spread,
    summary_table,
    within_noise,
)
from lab3.text_table import (
    NOTHING,
    Cell,
    Table,
    count,
    number,
    share,
    to_markdown,
    to_text,
    wrapped,
)


@dataclass(frozen=True)
class Column:
    """One metric column: header, unit, column of the summary, how a number is written."""

    header: str
    unit: str
    metric: str
    write: Callable[[float], str]


def found(write: Callable[[float], str]) -> Callable[[float], str]:
    """`write` for what a server has to tell: what it did not tell is "not found", never 0."""
    return lambda value: "not found" if math.isnan(value) else write(value)


MAIN = (
    Column("TTFT P50", "ms", "ttft_p50_ms", number),
    Column("TTFT P99", "ms", "ttft_p99_ms", number),
    Column("ITL P50", "ms, client", "itl_p50_ms", number),
    Column("ITL P99", "ms, client", "itl_p99_ms", number),
    Column("ITL P50", "ms, engine", "engine_itl_p50_ms", number),
    Column("ITL P99", "ms, engine", "engine_itl_p99_ms", number),
    Column("throughput", "output tok/s", "output_tokens_per_s", number),
    Column("timeouts", "requests", "requests_timed_out", count),
)
DETAILS = (
    Column("E2E mean", "ms", "e2e_mean_ms", number),
    Column("E2E P50", "ms", "e2e_p50_ms", number),
    Column("E2E P99", "ms", "e2e_p99_ms", number),
    Column("TPOT mean", "ms", "tpot_mean_ms", number),
    Column("max gap P99", "ms", "max_gap_p99_ms", number),
    Column("max gap", "ms, worst", "max_gap_max_ms", number),
    Column("preempted", "times", "preemptions", count),
    Column("recomputed", "tokens", "recomputed_tokens", count),
    Column("step P50", "ms", "step_p50_ms", number),
    Column("step P99", "ms", "step_p99_ms", number),
    Column("mixed steps", "share", "mixed_step_share", share),
    Column("ITL<0.3 ms", "share", "tiny_gap_share", share),
)
COMPARED = tuple(
    Column(header, "ratio", metric, number)
    for header, metric in (
        ("TTFT P50", "ttft_p50_ms"),
        ("TTFT P99", "ttft_p99_ms"),
        ("ITL P50", "itl_p50_ms"),
        ("ITL P99", "itl_p99_ms"),
        ("max gap P99", "max_gap_p99_ms"),
        ("E2E mean", "e2e_mean_ms"),
        ("E2E P99", "e2e_p99_ms"),
        ("throughput", "output_tokens_per_s"),
    )
)
DLA = (
    Column("JCT mean", "ms", "e2e_mean_ms", number),
    Column("JCT P50", "ms", "e2e_p50_ms", number),
    Column("JCT P99", "ms", "e2e_p99_ms", number),
    *MAIN[:2],
    MAIN[6],
    Column("preempted", "times", "preemptions", count),
    Column("recompute tax", "share", "recompute_tax", share),
    Column("max gap P99", "ms", "max_gap_p99_ms", number),
    Column("max gap", "ms, worst", "max_gap_max_ms", number),
)
DLA_DETAILS = (
    *MAIN[2:6],
    *(c for c in DETAILS if c.metric in ("tpot_mean_ms", "step_p50_ms", "tiny_gap_share")),
    MAIN[7],
)
DLA_COMPARED = tuple(Column(c.header, "ratio", c.metric, number) for c in DLA[:-1])
SWEEP = (
    *MAIN[:7],
    Column("peak KV", "tokens", "kv_peak_tokens", found(count)),
    Column("peak KV", "MiB", "kv_peak_mib", found(number)),
    Column("preempted", "times", "preemptions", found(count)),
    Column("timeouts", "requests", "requests_timed_out", count),
)
BOUNDS = tuple(
    Column("fraction of bound", of, f"{of.lower()}_bound_fraction", share)
    for of in ("makespan", "TTFT", "E2E")
)
GOODPUT = (
    Column("goodput", "req/s", "goodput_requests_per_s", number),
    Column("good", "share", "good_share", share),
)


def metric_table(
    title: str,
    key: str,
    summary: pd.DataFrame,
    labels: Sequence[str],
    columns: Sequence[Column],
    without: Sequence[str] = (),
) -> Table:
    """Medians of `columns` over repeats, with their range where there is more than one.

    `without` are rows without numbers: what was tried and has no usable run.
    """
    rows = [
        (Cell(label), *(_cell(row, column) for column in columns))
        for label, (_, row) in zip(labels, summary.iterrows(), strict=True)
    ]
    rows += [(Cell(label), *(Cell(NOTHING) for _ in columns)) for label in without]
    return Table(title, ((key, ""), *((c.header, c.unit) for c in columns)), tuple(rows))


def ratio_table(
    summary: pd.DataFrame, labels: Sequence[str], baseline: str, columns: Sequence[Column]
) -> Table | None:
    """Each arm's medians over the baseline arm's, at the same point; None without such a pair.

    A ratio whose difference is within the spread of the repeats is marked "~".
    """
    rows = []
    for label, (_, row) in zip(labels, summary.iterrows(), strict=True):
        base = summary[(summary.arm == baseline) & (summary.point == row.point)]
        if row.arm == baseline or base.empty:
            continue
        cells = (Cell(_ratio(row, base.iloc[0], column.metric)) for column in columns)
        rows.append((Cell(label), *cells))
    if not rows:
        return None
    base_label = summary.label[summary.arm == baseline].iloc[0]
    headers = (("strategy", ""), *((c.header, "") for c in columns))
    return Table(f"Ratio to {base_label}", headers, tuple(rows))


def tables(
    summary: pd.DataFrame, task: str, baseline: str, without: Sequence[str] = ()
) -> list[Table]:
    """The tables of a task: a sweep over X for task2, strategies against a baseline otherwise."""
    bounds = BOUNDS if BOUNDS[0].metric in summary else ()
    if task == "task2":
        rows = sweep.sweep_values(summary)
        labels = _labels(rows, [f"{x:,}" for x in rows.x])
        columns = SWEEP + (GOODPUT if "good_share" in rows else ())
        details = [c for c in (*DETAILS, *bounds) if c.metric != "preemptions"]
        return [
            metric_table("Task 2: max_num_batched_tokens (X)", "X", rows, labels, columns, without),
            metric_table("Task 2, more", "X", rows, labels, details),
        ]
    labels = _labels(summary, _arm_names(summary))
    is_dla = task == "dla"
    columns, details, compared = (
        (DLA, DLA_DETAILS, DLA_COMPARED) if is_dla else (MAIN, DETAILS, COMPARED)
    )
    found = [
        metric_table(f"{_title(task)}: strategies", "strategy", summary, labels, columns, without),
        metric_table(f"{_title(task)}, more", "strategy", summary, labels, (*details, *bounds)),
        ratio_table(summary, labels, baseline, compared),
    ]
    return [table for table in found if table is not None]


def legend(summary: pd.DataFrame, has_ratios: bool, is_sweep: bool = False) -> str:
    """What the marks in the tables mean."""
    low, high = summary.repeats.min(), summary.repeats.max()
    text = "Values: one run each"
    if high > 1:
        repeats = f"{low}" if low == high else f"{low} to {high}"
        text = f"Values: median over {repeats} repeats, with their smallest and largest"
    text += "; the first 10% of the requests are left out; timeouts count over all requests."
    if has_ratios:
        text += ' Ratios: "~" within noise, the repeats of one arm differ by as much'
        text += ", or a single repeat leaves the noise unknown."
    if is_sweep:
        text += (
            " Peak KV: the server's own figure, looked at once a second, as room of whole blocks."
        )
    if BOUNDS[0].metric in summary:
        text += " Fraction of bound: what no scheduler beats on this device, over what was reached."
    return text


def trouble_lines(
    runs: Sequence[Run],
    failed: Sequence[FailedRun],
    task: str,
    arms: Sequence[str],
    repeats: int | None,
) -> list[str]:
    """Everything that keeps the result from being complete and clean, a line each.

    `arms` and `repeats` are what was planned; without them arms are only compared with each other.
    """
    lines = [f"{f.info.folder.name}: {f.reason}" for f in failed if not f.refused]
    lines += [
        f"{r.info.folder.name}: with failures: {'; '.join(r.problems)}" for r in runs if r.problems
    ]
    for run in runs:
        lines += [
            f"{run.info.folder.name}: differs from vLLM's own numbers: {difference}"
            for difference in check_against_vllm(run)
        ]
    lines += sweep.mixed_loads([run.info for run in runs]) if task == "task2" else []
    known = {info.arm for info in [r.info for r in runs] + [f.info for f in failed]}
    lines += [f"{arm}: no run" for arm in arms if arm not in known]
    return lines + missing_repeats(runs, failed, repeats)


def refusal_lines(failed: Sequence[FailedRun]) -> list[str]:
    """What vLLM refused to run, in vLLM's words."""
    return [f"{f.info.folder.name}, {f.reason.rstrip('.')}." for f in failed if f.refused]


def report(
    runs: Sequence[Run],
    failed: Sequence[FailedRun],
    summary: pd.DataFrame,
    trouble: Sequence[str],
    task: str,
    baseline: str,
    goals: Goals | None,
) -> tuple[str, str]:
    """The whole result as (terminal text, Markdown)."""
    made = tables(summary, task, baseline, _without_numbers(runs, failed, task))
    has_ratios = any(t.title.startswith("Ratio") for t in made)
    below = [legend(summary, has_ratios, task == "task2")]
    below += [provenance_line([run.info for run in runs]) + "."]
    below += [kv_line([run.info for run in runs])] if task == "dla" else []
    below += fidelity_lines(summary)
    below += counter_lines(summary)
    below += refusal_lines(failed)
    below += [f"Note, {r.info.folder.name}: {note}." for r in runs for note in r.notes]
    said = sweep.findings(summary, goals, runs[0].info.profile) if task == "task2" else []
    problems = [f"NOT COMPLETE: {line}" for line in trouble]
    text = "\n\n".join([*(to_text(t) for t in made), wrapped([*said, *below, *problems])])
    blocks = [to_markdown(table) for table in made]
    blocks += ["\n".join(f"- {line}" for line in lines) for lines in (said, below, problems)]
    return text + "\n", "\n\n".join(block for block in blocks if block) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code (see the top of this file)."""
    args = _parser().parse_args(argv)
    try:
        runs, failed = load_runs(args.runs_dir, args.task)
        goals = goals_from(args.ttft_slo_ms, args.itl_slo_ms, runs)
    except ResultError as error:
        print(f"lab3.table: {error}", file=sys.stderr)
        return 2
    trouble = trouble_lines(runs, failed, args.task, args.arms, args.repeats)
    if not runs:
        lines = [*trouble, *refusal_lines(failed), "lab3.table: no run to table"]
        print("\n".join(lines), file=sys.stderr)
        return 2
    rows = runs_table(runs, goals)
    summary = summary_table(rows)
    text, markdown = report(runs, failed, summary, trouble, args.task, args.baseline, goals)
    args.out.mkdir(parents=True, exist_ok=True)
    rows.to_csv(args.out / "runs.csv", index=False)
    summary.to_csv(args.out / "summary.csv", index=False)
    (args.out / "table.txt").write_text(text, encoding="utf-8")
    (args.out / "table.md").write_text(markdown, encoding="utf-8")
    print(text, end="")
    return 1 if trouble else 0


def goals_from(ttft_ms: str | None, itl_ms: str | None, runs: Sequence[Run]) -> Goals | None:
    """The goals for goodput: as given, else from the runs' profile; None unless both are known.

    Raises ResultError for a goal that is not a positive number.
    """
    profile = runs[0].info.profile if runs else {}
    texts = (ttft_ms or profile.get("TTFT_SLO_MS"), itl_ms or profile.get("ITL_SLO_MS"))
    if not all(texts):
        return None
    try:
        ttft, itl = (float(text) for text in texts)
    except ValueError:
        ttft = itl = float("nan")
    if not (ttft > 0 and itl > 0):
        raise ResultError(f"TTFT_SLO_MS and ITL_SLO_MS must be positive numbers, not {texts}")
    return Goals(ttft, itl)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="lab3.table", description=__doc__.splitlines()[0])
    parser.add_argument("runs_dir", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--task", default="task3", help="task2 for the sweep, task3, dla, ...")
    parser.add_argument("--baseline", default="default", help="arm that ratios refer to")
    parser.add_argument("--arms", nargs="*", default=[], help="arms that must be there")
    parser.add_argument("--repeats", type=int, help="usable repeats that each arm must have")
    parser.add_argument("--ttft-slo-ms", default=os.environ.get("TTFT_SLO_MS"))
    parser.add_argument("--itl-slo-ms", default=os.environ.get("ITL_SLO_MS"))
    return parser


def _cell(row: pd.Series, column: Column) -> Cell:
    own = spread(row, column.metric)
    value = column.write(own.median)
    if column.metric == "requests_timed_out" and own.median > 0:
        value += f" ({row.timeout_rate:.1%})"
    low, high = column.write(own.low), column.write(own.high)
    shown = own.n > 1 and not math.isnan(own.median) and not (low == high == value)
    return Cell(value, f"{low}–{high}" if shown else "")


def _ratio(row: pd.Series, base: pd.Series, metric: str) -> str:
    own, other = spread(row, metric), spread(base, metric)
    if math.isnan(own.median) or math.isnan(other.median) or other.median == 0:
        return NOTHING
    mark = "~" if within_noise(own, other) else ""
    return f"{mark}{own.median / other.median:.2f}x"


def _arm_names(summary: pd.DataFrame) -> list[str]:
    """Labels; with the point behind them where one arm was run at several."""
    several = summary.groupby("arm").point.transform("nunique") > 1
    return [
        f"{row.label} {row.point}" if many else str(row.label)
        for many, row in zip(several, summary.itertuples(), strict=True)
    ]


def _labels(summary: pd.DataFrame, names: Sequence[str]) -> list[str]:
    """Names with a mark for arms of which no repeat is clean."""
    return [n if ok else f"{n} (failures)" for n, ok in zip(names, summary.valid, strict=True)]


def _without_numbers(runs: Sequence[Run], failed: Sequence[FailedRun], task: str) -> list[str]:
    """Labels (values of X for the sweep) that have no usable run, and why: failed or refused."""

    def label(info: RunInfo) -> str:
        x = info.point.get(sweep.X_NAME)
        return f"{x:,}" if task == "task2" and x is not None else info.label

    usable = {label(run.info) for run in runs}
    tried = {label(f.info): "refused" if f.refused else "failed" for f in failed}
    return [f"{name} ({why})" for name, why in tried.items() if name not in usable]


def _title(task: str) -> str:
    if task.startswith("task") and task[4:].isdigit():
        return f"Task {task[4:]}"
    return "DLA" if task == "dla" else task


if __name__ == "__main__":
    sys.exit(main())

"""Does a fresh run say what the committed one says? python -m lab3.reproduce FRESH COMMITTED

    python -m lab3.reproduce runs/task3-cpu results/task3-cpu
    python -m lab3.reproduce runs results            every folder that both have

A claim is a difference that the committed run shows beyond its noise: an arm against vLLM's
default, the largest X of Task 2 against the smallest, vLLM against transformers. The fresh run has
to show it in the same direction; the numbers may differ, as machines do. Exit code 0 when no claim
is turned round, 1 when one is, 2 when there is nothing to compare.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from lab3.summary import Spread, spread, within_noise
from lab3.sweep import sweep_values
from lab3.text_table import Cell, Table, number, to_text

SMALLEST_CHANGE = 0.05
"""Smaller differences are none, whatever the repeats say; with one repeat it is the only bound."""
STRATEGY_METRICS = {
    "ttft_p50_ms": "TTFT P50",
    "ttft_p99_ms": "TTFT P99",
    "itl_p50_ms": "ITL P50",
    "itl_p99_ms": "ITL P99",
    "max_gap_p99_ms": "max gap P99",
    "e2e_mean_ms": "E2E mean",
    "output_tokens_per_s": "throughput",
    "preemptions": "preemptions",
    "recomputed_tokens": "recomputed tokens",
}
SWEEP_METRICS = ("ttft_p50_ms", "ttft_p99_ms", "itl_p50_ms", "itl_p99_ms", "output_tokens_per_s")
PLAN_METRICS = {
    "output_tokens_per_s": "throughput",
    "kv_peak_bytes": "peak KV cache",
    "kv_waste_share": "KV wasted",
}


class NothingToCompare(Exception):
    """One line: what a folder lacks."""


@dataclass(frozen=True)
class Comparison:
    """A metric of one arm and of what it is held against."""

    own: Spread
    base: Spread

    @property
    def ratio(self) -> float:
        return self.own.median / self.base.median if self.base.median else math.nan

    @property
    def direction(self) -> str:
        """lower, higher, or none: equal, or not more than the repeats of one arm differ."""
        own, base = self.own.median, self.base.median
        if math.isnan(own) or math.isnan(base) or own == base:
            return "none"
        if abs(own - base) < SMALLEST_CHANGE * abs(base):
            return "none"
        if min(self.own.n, self.base.n) > 1 and within_noise(self.own, self.base):
            return "none"
        return "higher" if own > base else "lower"

    def __str__(self) -> str:
        if self.direction == "none":
            return f"no difference ({self.ratio:.2f}x)" if self.base.median else "no difference"
        if not self.base.median:
            return f"{self.direction} ({number(self.own.median)} against 0)"
        return f"{self.direction} ({self.ratio:.2f}x)"


def comparisons(folder: Path) -> dict[str, Comparison]:
    """All comparisons that a result folder allows, by a sentence without a number.

    Raises NothingToCompare with one line when it holds no table.
    """
    if (folder / "task1.csv").is_file():
        return dict(_plans(pd.read_csv(folder / "task1.csv")))
    if not _has_table(folder):
        raise NothingToCompare(f"{folder} has neither summary.csv nor task1.csv")
    summary = pd.read_csv(folder / "summary.csv")
    return dict(_sweep(summary) if (summary.task == "task2").all() else _strategies(summary))


def _strategies(summary: pd.DataFrame) -> Iterator[tuple[str, Comparison]]:
    for _, row in summary.iterrows():
        base = summary[(summary.arm == "default") & (summary.point == row.point)]
        if row.arm == "default" or base.empty:
            continue
        for metric, name in STRATEGY_METRICS.items():
            found = Comparison(spread(row, metric), spread(base.iloc[0], metric))
            yield f"{row.label} against Default: {name}", found


def _sweep(summary: pd.DataFrame) -> Iterator[tuple[str, Comparison]]:
    rows = sweep_values(summary)
    if len(rows) < 2:
        raise NothingToCompare("a sweep of one X: nothing to compare")
    for metric in SWEEP_METRICS:
        found = Comparison(spread(rows.iloc[-1], metric), spread(rows.iloc[0], metric))
        yield f"largest X against smallest: {STRATEGY_METRICS[metric]}", found


def _plans(rows: pd.DataFrame) -> Iterator[tuple[str, Comparison]]:
    rows = rows[rows.ok]
    for mode, group in rows.groupby("mode", sort=False):
        plans = group.set_index("plan")
        for plan in plans.index:
            if plan == "vllm" or "vllm" not in plans.index:
                continue
            for metric, name in PLAN_METRICS.items():
                own, base = (float(plans.loc[p, metric]) for p in ("vllm", plan))
                found = Comparison(Spread(own, own, own, 1), Spread(base, base, base, 1))
                where = "" if mode == "fixed" else f" ({mode})"
                yield f"vLLM against {plans.loc[plan, 'label']}{where}: {name}", found


def verdict(committed: Comparison, fresh: Comparison | None) -> str:
    """same, not shown (the fresh run sees no difference), OPPOSITE, or not run."""
    if fresh is None:
        return "not run"
    if fresh.direction == committed.direction:
        return "same"
    return "not shown" if fresh.direction == "none" else "OPPOSITE"


def judged(fresh: Path, committed: Path) -> list[tuple[str, Comparison, Comparison | None, str]]:
    """Each claim of the committed folder with both comparisons and the verdict."""
    mine, theirs = comparisons(fresh), comparisons(committed)
    return [
        (claim, found, mine.get(claim), verdict(found, mine.get(claim)))
        for claim, found in theirs.items()
        if found.direction != "none"
    ]


def pairs(fresh: Path, committed: Path) -> list[tuple[Path, Path]]:
    """The result folders to compare: these two, or the folders of one name below them."""
    if _has_table(committed):
        return [(fresh, committed)]
    folders = [folder for folder in sorted(committed.iterdir()) if _has_table(folder)]
    return [(fresh / f.name, f) for f in folders if (fresh / f.name).is_dir()]


def _has_table(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ("summary.csv", "task1.csv"))


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code (see the top of this file)."""
    parser = argparse.ArgumentParser(prog="python -m lab3.reproduce", description=__doc__)
    parser.add_argument("fresh", type=Path, help="folder of your run: runs/task3-cpu, or runs")
    parser.add_argument("committed", type=Path, help="what it is held against: results/task3-cpu")
    args = parser.parse_args(argv)
    try:
        for folder in (args.fresh, args.committed):
            if not folder.is_dir():
                raise NothingToCompare(f"no folder {folder}")
        folders = pairs(args.fresh, args.committed)
        if not folders:
            raise NothingToCompare(f"{args.fresh} and {args.committed} have no folder in common")
        found = [(theirs.name, judged(mine, theirs)) for mine, theirs in folders]
    except NothingToCompare as error:
        print(f"error: reproduce: {error}", file=sys.stderr)
        return 2
    verdicts = [line[3] for _, lines in found for line in lines]
    print("\n\n".join(to_text(_table(name, lines)) for name, lines in found))
    print("\n" + ", ".join(f"{verdicts.count(word)} {word}" for word in dict.fromkeys(verdicts)))
    return 1 if "OPPOSITE" in verdicts else 0


def _table(name: str, lines: Sequence[tuple[str, Comparison, Comparison | None, str]]) -> Table:
    headers = tuple((head, "") for head in ("claim", "committed", "fresh", "verdict"))
    rows = tuple(
        (Cell(claim), Cell(str(found)), Cell(str(fresh) if fresh else "-"), Cell(word))
        for claim, found, fresh, word in lines
    )
    return Table(name, headers, rows)


if __name__ == "__main__":
    sys.exit(main())

"""Tables of the experiments as Markdown: changes against vLLM's default, winners per regime."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from lab3.text_table import NOTHING, Cell, Table, to_markdown

NO_WINNER = "no clear winner"
LEAST = 0.02
"""A smaller change is none."""


def relative(frame: pd.DataFrame, cell: Sequence[str], metric: str) -> pd.DataFrame:
    """Each arm's mean over seeds of (its metric / the default's at the same seed) - 1.

    Index: ``cell`` columns and arm; columns: mean, low, high over the seeds. Seeds at which the
    default's metric is 0 are left out; NaN if that is all of them.
    """
    keys = [*cell, "seed"]
    base = frame[frame.arm == "default"].set_index(keys)[metric].rename("base")
    joined = frame.join(base, on=keys)
    joined["change"] = joined[metric] / joined.base.where(joined.base > 0) - 1
    grouped = joined.groupby([*cell, "arm"], sort=False).change
    return pd.DataFrame({"mean": grouped.mean(), "low": grouped.min(), "high": grouped.max()})


def winners(frame: pd.DataFrame, cell: Sequence[str], metric: str) -> pd.DataFrame:
    """The arm with the lowest mean ``metric`` in each cell and its ``change``.

    Index: ``cell``. Better than the default by LEAST or more at every seed, or it is no winner.
    """
    rows = {}
    for regime, arms in relative(frame, cell, metric).groupby(level=list(cell), sort=False):
        own = arms.droplevel(list(cell))
        name = own["mean"].idxmin()
        rows[regime] = (name if own.high[name] <= -LEAST else NO_WINNER, own["mean"][name])
    index = pd.MultiIndex.from_tuples(rows, names=list(cell))
    return pd.DataFrame(rows.values(), index=index, columns=["arm", "change"])


def balanced(frame: pd.DataFrame, cell: Sequence[str]) -> pd.DataFrame:
    """The rows of those seeds that every arm of every cell has, so that columns compare."""
    per_row = frame.groupby([*cell, "arm"]).seed.agg(set)
    return frame[frame.seed.isin(set.intersection(*per_row))]


def seeds_text(frame: pd.DataFrame, cell: Sequence[str]) -> str:
    """How many seeds stand behind a value: "3 seeds", or "1 to 3 seeds"."""
    counts = frame.groupby([*cell, "arm"]).seed.nunique()
    low, high = counts.min(), counts.max()
    return f"{low} seed{'s' if low > 1 else ''}" if low == high else f"{low} to {high} seeds"


def percent(value: float) -> str:
    """A change as "+12 %"."""
    if math.isnan(value):
        return NOTHING
    return "0 %" if round(100 * value) == 0 else f"{100 * value:+.0f} %"


def change_cell(changes: pd.DataFrame, key: tuple, with_range: bool = True) -> Cell:
    """The change at ``key`` of ``relative``'s result, its range over the seeds behind it."""
    if key not in changes.index:
        return Cell(NOTHING)
    mean, low, high = changes.loc[key, ["mean", "low", "high"]]
    shown = with_range and not math.isnan(mean) and percent(low) != percent(high)
    return Cell(percent(mean), f"{percent(low)[:-2]} to {percent(high)[:-2]}" if shown else "")


def winner_cell(found: pd.DataFrame, key: tuple) -> Cell:
    """As "SJF -34 %", or that nothing beats the default."""
    arm, change = found.loc[key]
    return Cell(arm if arm == NO_WINNER else f"{arm} {percent(change)}")


HONEST_AND_LIARS = ("honest", "liars")


def lies_table(rows: pd.DataFrame) -> Table:
    """JCT of honest and lying requests over the default's at the same seed: mean, least, largest.

    ``rows``: one for each arm and seed, with arm, label, seed, and ``GROUP_mean_ms`` and
    ``GROUP_p99_ms`` of both groups.
    """
    columns = [f"{group}_{kind}_ms" for group in HONEST_AND_LIARS for kind in ("mean", "p99")]
    base = rows[rows.arm == "default"].set_index("seed")[columns]
    made = []
    for label, own in rows[rows.arm != "default"].groupby("label", sort=False):
        ratio = own.set_index("seed")[columns] / base
        cells = (Cell(f"{r.mean():.2f}x", f"{r.min():.2f}-{r.max():.2f}") for _, r in ratio.items())
        made.append((Cell(label), *cells))
    heads = ((c.split("_")[0], c.split("_")[1]) for c in columns)
    return Table("Honest and lying requests", (("JCT to vLLM's default", ""), *heads), tuple(made))


def write(path: Path, tables: Sequence[Table], notes: Sequence[str]) -> None:
    """``tables`` and below them ``notes``, a bullet each."""
    bullets = "\n".join(f"- {note}" for note in notes)
    text = "\n\n".join([*map(to_markdown, tables), bullets])
    path.write_text(text + "\n", encoding="utf-8")


def cells(frame: pd.DataFrame, cell: Sequence[str]) -> Iterator[tuple]:
    """The distinct values of the ``cell`` columns in their order of appearance."""
    return frame[list(cell)].drop_duplicates().itertuples(index=False, name=None)

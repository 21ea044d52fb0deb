"""Tables for people: cells with ranges, as aligned terminal text and as Markdown."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

TEXT_WIDTH = 110
NOTHING = "–"


@dataclass(frozen=True)
class Cell:
    """A printed value and, below it or in brackets, what qualifies it (its range)."""

    value: str
    extra: str = ""


@dataclass(frozen=True)
class Table:
    """A titled table; `headers` are (name, unit)."""

    title: str
    headers: tuple[tuple[str, str], ...]
    rows: tuple[tuple[Cell, ...], ...]


def number(value: float) -> str:
    """Three significant digits or all digits before the point, thousands apart."""
    if math.isnan(value):
        return NOTHING
    size = abs(value)
    digits = 0 if size >= 100 or size == 0 else 1 if size >= 10 else 2
    return f"{value:,.{digits}f}"


def count(value: float) -> str:
    """A count; medians of two repeats may end in .5."""
    return NOTHING if math.isnan(value) else f"{value:,.0f}" if value % 1 == 0 else f"{value:,.1f}"


def share(value: float) -> str:
    """A share of 0..1 in percent."""
    return NOTHING if math.isnan(value) else f"{100 * value:.1f}%"


def to_text(table: Table) -> str:
    """Aligned for a terminal: ranges stand on a second line under their values."""
    head = [[name for name, _ in table.headers], [unit for _, unit in table.headers]]
    body = []
    for row in table.rows:
        body.append([cell.value for cell in row])
        body.append([cell.extra for cell in row])
    widths = [max(len(line[i]) for line in head + body) for i in range(len(table.headers))]

    def line(cells: list[str]) -> str:
        first, *rest = (
            c.ljust(w) if not i else c.rjust(w)
            for i, (c, w) in enumerate(zip(cells, widths, strict=True))
        )
        return "  ".join([first, *rest]).rstrip()

    lines = [table.title, *(line(cells) for cells in head), "  ".join("-" * w for w in widths)]
    lines += [line(cells) for cells in body]
    return "\n".join(text for text in lines if text)


def to_markdown(table: Table) -> str:
    """A Markdown table: ranges in square brackets after their values."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cells) + " |"

    def cell(value: Cell) -> str:
        return f"{value.value} [{value.extra}]" if value.extra else value.value

    head = line([f"{name} ({unit})" if unit else name for name, unit in table.headers])
    rule = line([":--", *["--:"] * (len(table.headers) - 1)])
    return "\n".join(
        [f"**{table.title}**", "", head, rule, *(line([cell(c) for c in r]) for r in table.rows)]
    )


def wrapped(lines: Sequence[str]) -> str:
    """Sentences below a table, broken for a terminal."""
    return "\n".join(
        textwrap.fill(line, TEXT_WIDTH, subsequent_indent="  ", break_on_hyphens=False)
        for line in lines
    )

"""What all figures share: colours, line styles, the legend above, the footer, the file formats.

Colours are Okabe and Ito's, told apart by the colour-blind (grey in place of their yellow, which
a print loses); each comes with its own line style and marker, so that a grey print can be read.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

PNG_DPI = 200
FORMATS = ("png", "svg", "pdf")
GREY = "#555555"
_COLOURS = (
    "#000000",
    "#E69F00",
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#888888",
)
_LINES = ("-", (0, (1, 1.2)), (0, (5, 1.5)), (0, (6, 1.5, 1, 1.5)), (0, (3, 1, 1, 1, 1, 1)))
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "p", "h")

_RC = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "svg.hashsalt": "lab3",
    "pdf.fonttype": 42,
}


@dataclass(frozen=True)
class Look:
    """How one arm is drawn, in every figure the same."""

    colour: str
    line: str | tuple
    marker: str


def looks(labels: Sequence[str]) -> dict[str, Look]:
    """A look per label by its place in the list; no two of up to 40 are alike."""
    return {
        label: Look(
            _COLOURS[i % len(_COLOURS)],
            _LINES[(i + i // len(_COLOURS)) % len(_LINES)],
            _MARKERS[i % len(_MARKERS)],
        )
        for i, label in enumerate(dict.fromkeys(labels))
    }


def new_figure(rows: int, columns: int, width_in: float, height_in: float, **kwargs) -> tuple:
    """A figure in the common style and its axes, always a 2-D array of `rows` x `columns`."""
    with plt.rc_context(_RC):
        figure, axes = plt.subplots(
            rows,
            columns,
            figsize=(width_in, height_in),
            squeeze=False,
            layout="constrained",
            **kwargs,
        )
    return figure, axes


def log_axis(axes: Axes, which: str) -> None:
    """Makes "x" or "y" logarithmic with plain numbers (20, 50, 1,000) and as many labels as fit.

    Call it when the limits of the axis are set.
    """
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    axis = axes.xaxis if which == "x" else axes.yaxis
    low, high = axis.get_view_interval()
    decades = np.log10(high / low)
    if decades < 1.3:
        labelled = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0) if decades < 0.7 else (1.0, 2.0, 3.0, 5.0)
    else:
        labelled = (1.0, 2.0, 5.0) if decades < 3 else (1.0,)
    # Within a factor of two there may be only one such number, or none.
    few = decades < 0.3
    axis.set_major_locator(MaxNLocator(5) if few else LogLocator(base=10, subs=labelled))
    axis.set_minor_locator(LogLocator(base=10, subs=np.arange(1.0, 10.0), numticks=100))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    axis.set_minor_formatter(NullFormatter())


def legend_above(figure: Figure, handles: Sequence, columns: int | None = None) -> None:
    """One legend for the whole figure, outside the data."""
    with plt.rc_context(_RC):
        figure.legend(
            handles=handles,
            loc="outside upper center",
            ncols=columns or min(len(handles), 4),
            handlelength=3.2,
        )


def footer(figure: Figure, lines: Sequence[str]) -> None:
    """Small print below the figure: what is shown and where the numbers come from."""
    width = int(figure.get_figwidth() * 19)
    text = "\n".join(textwrap.fill(line, width, break_on_hyphens=False) for line in lines if line)
    figure.supxlabel(text, fontsize=6.5, color=GREY, x=0.01, ha="left")


def save(figure: Figure, out: Path, name: str) -> list[Path]:
    """Writes NAME.png (200 dpi), NAME.svg and NAME.pdf, the same bytes for the same data."""
    out.mkdir(parents=True, exist_ok=True)
    paths = []
    with plt.rc_context(_RC):
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # laid out once, not once a format
        for kind in FORMATS:
            dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind, {})
            path = out / f"{name}.{kind}"
            figure.savefig(path, dpi=PNG_DPI, metadata=dates)
            paths.append(path)
    plt.close(figure)
    return paths

"""Figures A1 and A2: latencies and throughput over max_num_batched_tokens (X).

Lines join the medians of the repeats, bars reach from the smallest to the largest, small dots are
the single runs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from lab3 import sweep
from lab3.captions import provenance_line
from lab3.figures.style import GREY, Look, footer, legend_above, log_axis, new_figure
from lab3.results import RunInfo

_P50 = Look("#0072B2", "-", "o")
_P99 = Look("#D55E00", (0, (5, 1.5)), "s")
_X_LABEL = "max_num_batched_tokens (X)"


def latency_figure(
    summary: pd.DataFrame, rows: pd.DataFrame, infos: Sequence[RunInfo], prefix: str = ""
) -> Figure:
    """A1: TTFT and ITL, P50 and P99, over X (log x and y).

    `summary` as from `sweep.sweep_values`, `rows` the same for single runs; `prefix` "engine_"
    draws what the engine saw instead of the client.
    """
    figure, axes = new_figure(1, 2, 9.2, 4.3)
    where = "in the engine" if prefix else "at the client"
    for panel, metric in zip(axes[0], ("ttft", "itl"), strict=True):
        handles = [
            _line(panel, summary, rows, f"{prefix}{metric}_{name.lower()}_ms", look, name)
            for name, look in (("P50", _P50), ("P99", _P99))
        ]
        log_axis(panel, "y")
        panel.set_ylabel(f"{metric.upper()} {where} (ms)")
        _x_axis(panel, summary.x)
    legend_above(figure, handles)
    _caption(figure, summary, infos)
    return figure


def throughput_figure(
    summary: pd.DataFrame, rows: pd.DataFrame, infos: Sequence[RunInfo]
) -> Figure:
    """A2: output throughput over X, with the X where it saturates and the offered load."""
    figure, axes = new_figure(1, 1, 7.6, 4.3)
    panel = axes[0, 0]
    handles = [_line(panel, summary, rows, "output_tokens_per_s", _P50, "output tokens/s")]
    top = summary.output_tokens_per_s_max.max()
    handles += _offered(panel, summary, infos, top)
    x = sweep.saturation_x(summary)
    handles.append(
        panel.axvline(
            x, color=_P99.colour, ls=":", lw=1.4, label=f"within 3% of the best from X={x:,} on"
        )
    )
    panel.set_ylim(0, 1.15 * top)
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    panel.set_ylabel("output throughput (tokens/s)")
    _x_axis(panel, summary.x)
    legend_above(figure, handles)
    _caption(figure, summary, infos)
    return figure


def _line(
    panel: Axes, summary: pd.DataFrame, rows: pd.DataFrame, metric: str, look: Look, label: str
):
    median = summary[metric].to_numpy()
    low, high = summary[f"{metric}_min"].to_numpy(), summary[f"{metric}_max"].to_numpy()
    panel.plot(rows.x, rows[metric], ls="", marker=".", ms=4, color=look.colour, alpha=0.5)
    return panel.errorbar(
        summary.x,
        median,
        yerr=np.array([median - low, high - median]),
        color=look.colour,
        ls=look.line,
        lw=1.8,
        marker=look.marker,
        ms=5.5,
        mfc="white",
        mew=1.3,
        capsize=3,
        elinewidth=1,
        label=label,
    )


def _offered(panel: Axes, summary: pd.DataFrame, infos: Sequence[RunInfo], top: float) -> list:
    """The offered load as a line, where it is one number and not far above the curve."""
    rate = sweep.request_rate(summary)
    lengths = {info.asked.get("output_tokens") for info in infos}
    length = lengths.pop() if len(lengths) == 1 else None
    if not np.isfinite(rate) or not isinstance(length, int) or rate * length > 1.15 * top:
        return []
    offered = rate * length
    label = f"offered: {rate:g} requests/s x {length} tokens"
    return [panel.axhline(offered, color=GREY, ls="-.", lw=1, label=label)]


def _x_axis(panel: Axes, x: pd.Series) -> None:
    panel.set_xscale("log", base=2)
    panel.set_xlim(min(x) / 1.25, max(x) * 1.25)
    panel.xaxis.set_major_locator(FixedLocator(sorted(set(x))))
    panel.xaxis.set_minor_locator(NullLocator())
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    panel.set_xlabel(_X_LABEL)


def _caption(figure: Figure, summary: pd.DataFrame, infos: Sequence[RunInfo]) -> None:
    low, high = summary.repeats.min(), summary.repeats.max()
    repeats = f"{low}" if low == high else f"{low} to {high}"
    note = f"Median of {repeats} runs, bars from smallest to largest, dots are single runs."
    footer(figure, [f"{note} First 10% of the requests left out.", provenance_line(infos)])

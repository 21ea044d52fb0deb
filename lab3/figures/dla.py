"""The DLA figure: how job completion times are distributed, and what was preempted, arm by arm.

Dots are single repeats, bars their median. Hollow diamonds are what the simulator says of the same
requests on the same engine, with step times fitted on Passthrough.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lab3.captions import kv_line, provenance_line
from lab3.figures.cdf import quantile_curve
from lab3.figures.style import GREY, Look, footer, legend_above, log_axis, looks, new_figure
from lab3.results import Run
from lab3.summary import run_row

SIMULATED_FILE = "simulated.csv"
_DIAMOND = {"marker": "D", "ms": 6, "mfc": "none", "mec": "#111111", "mew": 1.2}
JCT, PREEMPTIONS = "e2e_mean_ms", "preemptions"


def dla_figure(runs: Sequence[Run], simulated: pd.DataFrame | None = None) -> Figure:
    """CDF of the JCT, mean JCT and preemptions; `runs` in the order of the legend.

    `simulated` has a row an arm, with columns arm, simulated_e2e_mean_ms, simulated_preemptions.
    """
    arms: dict[str, list[Run]] = {}
    for run in runs:
        arms.setdefault(run.info.label, []).append(run)
    look = looks(list(arms))
    height = max(4.4, 1.8 + 0.32 * len(arms))
    figure, axes = new_figure(1, 3, 11.5, height, width_ratios=[1.5, 1, 1])
    _cdf(axes[0, 0], arms, look)
    rows = {label: [run_row(run) for run in own] for label, own in arms.items()}
    for panel, metric, unit, scale in (
        (axes[0, 1], JCT, "mean JCT (s)", 1e-3),
        (axes[0, 2], PREEMPTIONS, "preemptions in a run", 1.0),
    ):
        measured = {
            label: scale * np.array([r[metric] for r in own]) for label, own in rows.items()
        }
        _bars(panel, measured, look, _of_simulator(simulated, arms, metric, scale))
        panel.set_xlabel(unit)
        panel.set_yticklabels(list(arms) if panel is axes[0, 1] else [])
    handles = [
        Line2D([], [], color=x.colour, ls=x.line, lw=1.8, label=label) for label, x in look.items()
    ]
    if simulated is not None:
        handles.append(
            Line2D([], [], ls="", marker="D", mfc="none", mec="#111111", label="simulated")
        )
    legend_above(figure, handles)
    infos = [run.info for run in runs]
    repeats = sorted({len(own) for own in arms.values()})
    how = f"{' or '.join(map(str, repeats))} runs an arm: thin lines and dots each, thick pooled."
    if repeats == [1]:
        how = "One run an arm."
    footer(
        figure,
        [
            f"{how} Without the first 10% of the requests; preemptions over all. {kv_line(infos)}",
            "" if simulated is None else "SIMULATED diamonds: step times fitted on Passthrough.",
            provenance_line(infos),
        ],
    )
    return figure


def _cdf(panel: Axes, arms: dict[str, list[Run]], look: dict[str, Look]) -> None:
    most, least = 0.0, np.inf
    for label, own in arms.items():
        parts = [run.kept.e2e_ms.to_numpy() / 1000 for run in own]
        pooled, colour = np.concatenate(parts), look[label].colour
        if len(parts) > 1:
            for part in parts:
                panel.plot(*quantile_curve(part, False), color=colour, lw=0.5, alpha=0.4)
        panel.plot(*quantile_curve(pooled, False), color=colour, ls=look[label].line, lw=1.8)
        most, least = max(most, pooled.max()), min(least, np.quantile(pooled, 0.005))
    panel.set_xlim(0.9 * least, 1.1 * most)
    log_axis(panel, "x")
    panel.set_ylim(0, 1.01)
    panel.set_xlabel("JCT (s), left is faster")
    panel.set_ylabel("share of requests not slower than x")


def _bars(
    panel: Axes,
    measured: dict[str, np.ndarray],
    look: dict[str, Look],
    simulated: Callable[[str], float],
) -> None:
    """A row an arm, the first on top."""
    for row, (label, values) in enumerate(measured.items()):
        known = values[~np.isnan(values)]
        colour = look[label].colour
        if len(known):
            panel.barh(row, np.median(known), height=0.6, color=colour, alpha=0.35)
            panel.plot(known, np.full(len(known), row), ls="", marker=".", ms=5, color=colour)
        panel.plot(simulated(label), row, **_DIAMOND)
    panel.axvline(0, color=GREY, lw=0.8)
    panel.set_yticks(range(len(measured)))
    panel.set_ylim(len(measured) - 0.5, -0.5)
    panel.set_xlim(left=0)
    panel.grid(axis="y", visible=False)


def _of_simulator(
    simulated: pd.DataFrame | None, arms: dict[str, list[Run]], metric: str, scale: float
) -> Callable[[str], float]:
    """The simulator's value of an arm by label; NaN, which draws nothing, where it has none."""
    found: dict[str, float] = {}
    if simulated is not None:
        found = dict(zip(simulated.arm, scale * simulated[f"simulated_{metric}"], strict=True))
    return lambda label: found.get(arms[label][0].info.arm, float("nan"))

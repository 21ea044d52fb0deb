"""Figure 3A: how TTFT and ITL are distributed under each strategy.

Thick lines pool the repeats of an arm, thin ones are its single repeats: where they fan out, the
difference between arms means little. Markers stand at P50 and P99.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lab3.captions import provenance_line
from lab3.figures.style import Look, footer, legend_above, log_axis, looks, new_figure
from lab3.metrics import TINY_GAP_MS
from lab3.results import Run

Sample = Callable[[Run], np.ndarray]
POINTS = 1500
TAIL_END = 1e-4
"""Tails are drawn down to one value in ten thousand."""

CLIENT: tuple[tuple[str, Sample], ...] = (
    ("TTFT (ms)", lambda run: run.kept.ttft_ms.to_numpy()),
    ("ITL (ms)", lambda run: run.kept_gaps_ms),
)
ENGINE: tuple[tuple[str, Sample], ...] = (
    ("TTFT in the engine (ms)", lambda run: run.engine_ttft_ms),
    ("ITL in the engine (ms)", lambda run: run.engine_itl_ms),
)


def cdf_figure(runs: Sequence[Run], samples: Sequence[tuple[str, Sample]] = CLIENT) -> Figure:
    """Overlaid CDFs, one panel a sample, log x. `runs` in the order of the legend."""
    return _figure(runs, samples, tail=False)


def tail_figure(runs: Sequence[Run], samples: Sequence[tuple[str, Sample]] = CLIENT) -> Figure:
    """The same as shares above x on a log y: 0.01 is P99, where strategies differ most."""
    return _figure(runs, samples, tail=True)


def quantile_curve(values: np.ndarray, tail: bool) -> tuple[np.ndarray, np.ndarray]:
    """(x, y) of the empirical CDF, or of its complement for `tail`, thinned to POINTS points.

    A tail is thinned evenly in log y, so that its far end keeps its points, and stops at the
    share of a single value.
    """
    if tail:
        above = np.geomspace(1.0, max(1 / len(values), TAIL_END), POINTS)
        return np.quantile(values, 1 - above), above
    below = np.linspace(0, 1, min(POINTS, max(len(values), 2)))
    return np.quantile(values, below), below


def _figure(runs: Sequence[Run], samples: Sequence[tuple[str, Sample]], tail: bool) -> Figure:
    figure, axes = new_figure(1, len(samples), 9.2, 4.6)
    for panel, (name, sample) in zip(axes[0], samples, strict=True):
        arms = {label: _parts(own, sample) for label, own in _by_label(runs).items()}
        _draw(panel, arms, tail)
        panel.set_xlabel(f"{name}, left is faster")
        unit = "requests" if name.startswith("TTFT") else "gaps"
        panel.set_ylabel(f"share of {unit} {'slower than' if tail else 'not slower than'} x")
    _finish(figure, runs, samples)
    return figure


def _parts(runs: Sequence[Run], sample: Sample) -> list[np.ndarray]:
    """The values of each run that has some. Gaps of 0 ms (chunks read at once) become tiny: a
    log axis has no 0."""
    found = [np.asarray(sample(run), dtype=float) for run in runs]
    found = [values[~np.isnan(values)] for values in found]
    return [np.maximum(values, 1e-3) for values in found if len(values)]


def _draw(panel: Axes, arms: dict[str, list[np.ndarray]], tail: bool) -> None:
    for label, look in looks(list(arms)).items():
        parts = arms[label]
        if not parts:
            continue
        if len(parts) > 1:
            for part in parts:
                panel.plot(*quantile_curve(part, tail), color=look.colour, lw=0.5, alpha=0.45)
        pooled = np.concatenate(parts)
        panel.plot(*quantile_curve(pooled, tail), color=look.colour, ls=look.line, lw=1.8)
        _mark(panel, pooled, look, tail)
    _percentile_lines(panel, tail)
    pooled = [np.concatenate(parts) for parts in arms.values() if parts]
    if pooled:
        # Chunks that the client read at once would stretch the axis to 0.001 ms: they stay outside.
        real = [values[values >= TINY_GAP_MS] for values in pooled]
        left = min((np.quantile(values, 0.002) for values in real if len(values)), default=1.0)
        panel.set_xlim(0.9 * left, 1.1 * max(values.max() for values in pooled))
    log_axis(panel, "x")
    if tail:
        most = max((len(values) for values in pooled), default=1)
        panel.set_ylim(max(0.5 / most, TAIL_END), 1.3)
        log_axis(panel, "y")
    else:
        panel.set_ylim(0, 1.01)


def _percentile_lines(panel: Axes, tail: bool) -> None:
    for share, name in ((0.5, "P50"), (0.99, "P99")):
        y = 1 - share if tail else share
        panel.axhline(y, color="#AAAAAA", lw=0.7, zorder=0)
        panel.annotate(
            name,
            (1.0, y),
            xycoords=panel.get_yaxis_transform(),
            xytext=(2, 0),
            textcoords="offset points",
            fontsize=7,
            va="center",
        )


def _mark(panel: Axes, values: np.ndarray, look: Look, tail: bool) -> None:
    for share in (0.5, 0.99):
        panel.plot(
            np.quantile(values, share),
            1 - share if tail else share,
            marker=look.marker,
            ms=5.5,
            mfc="white",
            mec=look.colour,
            mew=1.3,
            zorder=5,
            clip_on=False,
        )


def _finish(figure: Figure, runs: Sequence[Run], samples: Sequence[tuple[str, Sample]]) -> None:
    arms = _by_label(runs)
    absent = [
        label for label, own in arms.items() if not any(len(s(r)) for r in own for _, s in samples)
    ]
    handles = [
        Line2D([], [], color=x.colour, ls=x.line, lw=1.8, marker=x.marker, mfc="white", label=label)
        for label, x in looks(list(arms)).items()
        if label not in absent
    ]
    legend_above(figure, handles)
    repeats = sorted({len(own) for own in arms.values()})
    how = f"Thick: {' or '.join(map(str, repeats))} repeats pooled; thin: each repeat."
    if repeats == [1]:
        how = "One run per strategy."
    chunks = [label for label, own in arms.items() if any(r.itl_unit == "chunk" for r in own)]
    footer(
        figure,
        [
            f"{how} Markers at P50 and P99. First 10% of the requests left out."
            + (f" ITL per chunk for {', '.join(chunks)}." if chunks else "")
            + (f" No step record: {', '.join(absent)}." if absent else ""),
            provenance_line([run.info for run in runs]),
        ],
    )


def _by_label(runs: Sequence[Run]) -> dict[str, list[Run]]:
    arms: dict[str, list[Run]] = {}
    for run in runs:
        arms.setdefault(run.info.label, []).append(run)
    return arms

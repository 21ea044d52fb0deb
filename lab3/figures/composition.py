"""Figure 3B: what each engine step held, prefill tokens above and decode tokens below.

A panel a strategy, the same seconds after the first request. A step that has both is mixed; under
Step-Exclusive Prefill-First there is none, and decodes pause while prompts are read.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from lab3 import metrics
from lab3.captions import provenance_line
from lab3.figures.style import GREY, footer, legend_above, new_figure
from lab3.results import Run

DECODE_HEIGHT = 0.6
"""Height of the decode half of a panel; the prefill half is 1."""
KINDS = {"prefill only": "#D55E00", "decode only": "#56B4E9", "mixed": "#111111"}


def composition_figure(runs: Sequence[Run], seconds: float | None = None) -> Figure | None:
    """Steps of one run an arm over `seconds` (default: what shows about 250 steps).

    Runs without a step record are left out; None when no run has one.
    """
    shown = _one_run_an_arm([run for run in runs if run.steps is not None])
    if not shown:
        return None
    seconds = seconds or _readable_seconds(shown[0].steps)
    start_s = _middle_s(shown, seconds)
    windows = [_window(run, start_s, seconds) for run in shown]
    figure, axes = new_figure(len(shown), 1, 9.2, 1.2 + 1.45 * len(shown), sharex=True)
    tops = [
        max((window[column].max() for window in windows if len(window)), default=1) or 1
        for column in ("prefill_tokens", "decode_tokens")
    ]
    for panel, run, window in zip(axes[:, 0], shown, windows, strict=True):
        _bars(panel, window, *tops)
        panel.set_title(_panel_title(run), loc="left", fontsize=9)
    axes[0, 0].set_xlim(start_s, start_s + seconds)
    axes[-1, 0].set_xlabel(
        "seconds since the first request; bar height: tokens in the step, width: its duration"
    )
    legend_above(figure, [Patch(color=c, label=f"{kind} step") for kind, c in KINDS.items()])
    _caption(figure, runs, shown)
    return figure


def step_kinds(steps: pd.DataFrame) -> np.ndarray:
    """The kind of each step, a key of KINDS; "" for a step without tokens."""
    prefill, decode = steps.prefill_tokens.to_numpy() > 0, steps.decode_tokens.to_numpy() > 0
    kinds = [prefill & decode, prefill, decode]
    return np.select(kinds, ["mixed", "prefill only", "decode only"], default="")


def _bars(panel: Axes, window: pd.DataFrame, top_prefill: float, top_decode: float) -> None:
    """Prefill tokens up, decode tokens down, each on its own scale: they differ tenfold."""
    for kind, colour in KINDS.items():
        steps = window[window.kind == kind]
        up = steps.prefill_tokens / top_prefill
        down = -DECODE_HEIGHT * steps.decode_tokens / top_decode
        boxes = [
            [(a, low), (a, high), (b, high), (b, low)]
            for a, b, low, high in zip(steps.begin_s, steps.end_s, down, up, strict=True)
        ]
        panel.add_collection(PolyCollection(boxes, facecolors=colour, edgecolors="white", lw=0.15))
    panel.axhline(0, color=GREY, lw=0.8)
    panel.set_ylim(-1.1 * DECODE_HEIGHT, 1.1)
    prefill = [t for t in MaxNLocator(2, integer=True).tick_values(0, top_prefill) if t >= 0]
    decode = [t for t in MaxNLocator(2, integer=True).tick_values(0, top_decode) if t > 0]
    places = [t / top_prefill for t in prefill] + [-DECODE_HEIGHT * t / top_decode for t in decode]
    shown = [(y, t) for y, t in zip(places, prefill + decode, strict=True) if abs(y) <= 1.1]
    panel.set_yticks([y for y, _ in shown], [f"{t:,.0f}" for _, t in shown], fontsize=8)
    panel.set_ylabel("← decode | prefill →\ntokens", fontsize=8)
    panel.grid(axis="x", visible=False)


def _window(run: Run, start_s: float, seconds: float) -> pd.DataFrame:
    """Steps in the shown seconds with begin_s, end_s (since the first request) and kind."""
    steps = run.steps[run.steps.engine == 0]
    zero_s = run.requests.start_s.min()
    end_s = steps.done_s - zero_s
    frame = steps.assign(end_s=end_s, begin_s=end_s - steps.step_ms / 1000, kind=step_kinds(steps))
    return frame[(frame.end_s > start_s) & (frame.begin_s < start_s + seconds)]


def _panel_title(run: Run) -> str:
    steps = run.steps[run.steps.in_window]
    mixed = metrics.mixed_step_share(
        steps.prefill_tokens.to_numpy(), steps.decode_tokens.to_numpy()
    )
    kinds = step_kinds(steps)
    shares = {kind: (kinds == kind).sum() / max((kinds != "").sum(), 1) for kind in KINDS}
    return (
        f"{run.info.label}: {mixed:.1%} of {(kinds != '').sum():,} steps are mixed, "
        f"{shares['prefill only']:.1%} prefill only, {shares['decode only']:.1%} decode only"
    )


def _one_run_an_arm(runs: Sequence[Run]) -> list[Run]:
    arms: dict[str, Run] = {}
    for run in runs:
        arms.setdefault(run.info.label, run)
    return list(arms.values())


def _readable_seconds(steps: pd.DataFrame, wanted_steps: int = 250) -> float:
    """A round time span that holds about `wanted_steps` steps of this record, at most all."""
    span_s = float(steps.done_s.max() - steps.t_s.min())
    if len(steps) <= wanted_steps:
        return span_s
    wish_s = span_s * wanted_steps / len(steps)
    choices = [n * 10.0**k for k in range(-4, 4) for n in (1, 2, 5)]
    return min(span_s, max(choice for choice in choices if choice <= max(wish_s, 1e-4)))


def _middle_s(runs: Sequence[Run], seconds: float) -> float:
    """Start of the span around the middle of the shortest run, in s since its first request."""
    ends = [run.steps.done_s.max() - run.requests.start_s.min() for run in runs]
    return max(0.0, round(min(ends) / 2 - seconds / 2, 1))


def _caption(figure: Figure, runs: Sequence[Run], shown: Sequence[Run]) -> None:
    absent = dict.fromkeys(r.info.label for r in runs if r.steps is None)
    note = "Shares are of the whole window, without the first 10% of the requests."
    if absent:
        note += f" No step record: {', '.join(absent)}"
        passthrough = any(run.info.arm == "passthrough" for run in shown)
        note += " (Passthrough makes the same decisions)." if passthrough else "."
    footer(figure, [note, provenance_line([run.info for run in shown])])

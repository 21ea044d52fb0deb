"""What a sweep of max_num_batched_tokens (X) shows, said from the data.

Takes `summary_table` of one arm over several X. Says whether "larger X: lower TTFT, worse ITL"
holds, where throughput saturates, and which X serves a goal best; where the effect is flat or
smaller than the spread of the repeats it says so and names the knob that would show it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from lab3.results import RunInfo
from lab3.summary import Goals, Spread, spread, within_noise

X_NAME = "max_num_batched_tokens"
FLAT_SHARE = 0.05
"""A change by less than this share of the first value counts as flat."""
SATURATED_SHARE = 0.97
"""Throughput saturates at the smallest X that brings this share of the best."""
RATE_BOUND_SHARE = 0.9
"""From this share of the offered requests on, the load limits throughput, not the engine."""

_LATENCIES = {
    "ttft_p50_ms": "TTFT P50",
    "ttft_p99_ms": "TTFT P99",
    "itl_p50_ms": "ITL P50",
    "itl_p99_ms": "ITL P99",
}


_WORDS = {"flat": "is flat", "noise": "is within noise", "unknown": "is unknown"}


@dataclass(frozen=True)
class Trend:
    """How one latency changes from the smallest X to the largest."""

    name: str
    x: tuple[int, int]
    first: Spread
    last: Spread
    lowest_at: int

    @property
    def ratio(self) -> float:
        return self.last.median / self.first.median if self.first.median else float("nan")

    @property
    def direction(self) -> str:
        """falls, rises, flat, noise (the repeats differ more than the ends) or unknown."""
        if np.isnan(self.ratio):
            return "unknown"
        if abs(self.ratio - 1) < FLAT_SHARE:
            return "flat"
        if within_noise(self.first, self.last):
            return "noise"
        return "rises" if self.ratio > 1 else "falls"

    def __str__(self) -> str:
        verdict = {
            "flat": f"flat (changes by less than {FLAT_SHARE:.0%})",
            "unknown": "no such times in these runs",
            "noise": "not shown, the repeats of one X differ by more",
        }.get(self.direction, self.direction)
        return (
            f"{self.name}: {self.first.median:.1f} ms at X={self.x[0]}, {self.last.median:.1f} ms "
            f"at X={self.x[1]} ({self.ratio:.2f}x): {verdict}; lowest at X={self.lowest_at}."
        )


def mixed_loads(infos: Sequence[RunInfo]) -> list[str]:
    """What differs between the points of a sweep besides X, a line each; nothing for a clean one.

    It happens when a folder is used again with another load and not for every X.
    """
    settings = [
        {k: v for k, v in (info.point | info.asked).items() if k != X_NAME and v is not None}
        for info in infos
    ]
    lines = []
    for name in dict.fromkeys(name for each in settings for name in each):
        values = sorted({str(each.get(name)) for each in settings})
        if len(values) > 1:
            lines.append(
                f"the points differ in {name} ({', '.join(values)}) and can't be compared: "
                "run all of them again, or use another RUN_DIR"
            )
    return lines


def sweep_values(summary: pd.DataFrame) -> pd.DataFrame:
    """Rows of `summary` that have an X, with it as column `x`, in order of X."""
    x = [json.loads(point).get(X_NAME) for point in summary.point]
    rows = summary[[value is not None for value in x]].copy()
    rows.insert(0, "x", [int(value) for value in x if value is not None])
    return rows.sort_values("x", kind="stable").reset_index(drop=True)


def findings(summary: pd.DataFrame, goals: Goals | None, profile: dict[str, Any]) -> list[str]:
    """All lines said about one sweep; `profile` is that of the runs (for the knobs' names)."""
    rows = sweep_values(summary)
    if rows.x.nunique() < 2:
        return ["One X only: nothing to compare. Sweep several values of max_num_batched_tokens."]
    trends = latency_trends(rows)
    return [
        *(str(trend) for trend in trends),
        direction_verdict(trends),
        *knob_lines(trends, rows, profile),
        *saturation_lines(rows),
        recommendation(rows, goals),
    ]


def latency_trends(rows: pd.DataFrame) -> list[Trend]:
    """TTFT and ITL, P50 and P99, over X. `rows` as from `sweep_values`."""
    first, last = rows.iloc[0], rows.iloc[-1]
    return [
        Trend(
            name,
            (int(first.x), int(last.x)),
            spread(first, column),
            spread(last, column),
            int(rows.x[rows[column].fillna(np.inf).idxmin()]),
        )
        for column, name in _LATENCIES.items()
    ]


def direction_verdict(trends: list[Trend]) -> str:
    """Whether "larger X: lower TTFT, worse ITL" holds in these runs, for P50 and P99 apart."""
    ttft = _claim("lower TTFT", "falls", "rises", [t for t in trends if t.name.startswith("TTFT")])
    itl = _claim("worse ITL", "rises", "falls", [t for t in trends if t.name.startswith("ITL")])
    return f'"Larger X: lower TTFT, worse ITL": {ttft}; {itl}.'


def _claim(text: str, wanted: str, unwanted: str, trends: list[Trend]) -> str:
    percentiles = {trend.name.split()[-1]: trend.direction for trend in trends}
    held = [name for name, direction in percentiles.items() if direction == wanted]
    if len(held) == len(percentiles):
        return f'"{text}" holds'
    rest = ", ".join(f"{n} {_WORDS.get(d, d)}" for n, d in percentiles.items() if d != wanted)
    if held:
        return f'"{text}" holds for {held[0]} only ({rest})'
    verdict = "does not hold" if unwanted in percentiles.values() else "is not shown"
    return f'"{text}" {verdict} ({rest})'


def knob_lines(trends: list[Trend], rows: pd.DataFrame, profile: dict[str, Any]) -> list[str]:
    """Which knob to turn for effects that are flat or hidden by noise; none when all show."""
    unclear = [trend for trend in trends if trend.direction in ("flat", "noise")]
    if not unclear:
        return []
    prefix = "TASK2_" if "TASK2_REQUEST_RATE" in profile else ""
    names = ", ".join(trend.name for trend in unclear)
    advice = [f"raise {prefix}REQUEST_RATE (or inf), so that prompts compete for the budget"]
    if any(trend.direction == "noise" for trend in unclear):
        advice.append(f"raise {prefix}REPEATS")
    if rows.preemptions.max() > 0:
        advice.append(
            f"enlarge the KV pool, up to {rows.preemptions.max():.0f} preemptions a run "
            "blur the effect of X"
        )
    return [f"No clear effect of X on {names}. To show it: {'; '.join(advice)}."]


def saturation_x(rows: pd.DataFrame) -> int:
    """Smallest X whose median throughput is within 3 % of the best one's."""
    best = rows.output_tokens_per_s.max()
    return int(rows.x[rows.output_tokens_per_s >= SATURATED_SHARE * best].min())


def saturation_lines(rows: pd.DataFrame) -> list[str]:
    """Whether throughput rises with X, where it saturates, and whether the load caps it."""
    tokens = [spread(row, "output_tokens_per_s") for _, row in rows.iterrows()]
    drops = [
        f"{a} to {b}"
        for a, b, low, high in zip(rows.x, rows.x[1:], tokens, tokens[1:], strict=False)
        if high.median < SATURATED_SHARE * low.median and not within_noise(low, high)
    ]
    shape = f"drops from X={', '.join(drops)}" if drops else "never drops beyond noise as X grows"
    x, best = saturation_x(rows), rows.output_tokens_per_s.max()
    if x < rows.x.max():
        share = f"within {1 - SATURATED_SHARE:.0%} of the best, {best:.0f} output tokens/s"
        where = f"it saturates at X={x} ({share})"
    else:
        where = f"it still rises at the largest X={x} ({best:.0f} output tokens/s)"
    lines = [f"Throughput {shape}; {where}."]
    rate = request_rate(rows)
    if np.isfinite(rate) and rows.requests_per_s.min() >= RATE_BOUND_SHARE * rate:
        lines.append(
            f"Every X keeps up with the {rate:g} requests/s offered: the load limits throughput, "
            "not X. A higher REQUEST_RATE (or inf) shows where the engine saturates."
        )
    return lines


def request_rate(rows: pd.DataFrame) -> float:
    """The offered rate in requests/s if it is one number for all rows, else infinite."""
    rates = {float(json.loads(point).get("request_rate", "inf")) for point in rows.point}
    return rates.pop() if len(rates) == 1 else float("inf")


def recommended_x(rows: pd.DataFrame) -> int | None:
    """The X with the best goodput; among equals (within noise) the one with the lowest ITL P99.

    None when no request met the goals, or no goals were set.
    """
    if "good_share" not in rows or not rows.good_share.max() > 0:
        return None
    best = spread(rows.loc[rows.goodput_requests_per_s.idxmax()], "goodput_requests_per_s")
    equal = [
        i
        for i, row in rows.iterrows()
        if (own := spread(row, "goodput_requests_per_s")).median == best.median
        or (own.n > 1 and within_noise(own, best))
    ]
    return int(rows.x[rows.loc[equal].itl_p99_ms.fillna(np.inf).idxmin()])


def recommendation(rows: pd.DataFrame, goals: Goals | None) -> str:
    """`recommended_x` in a sentence.

    Without goals, or when no X meets them for a single request, the line says so.
    """
    if goals is None:
        return "No recommendation: set ITL_SLO_MS and TTFT_SLO_MS to the goals of your service."
    goal_text = f"TTFT <= {goals.ttft_ms:g} ms and ITL P99 <= {goals.itl_ms:g} ms for each request"
    smoothest = rows.loc[rows.itl_p99_ms.fillna(np.inf).idxmin()]
    if not rows.good_share.max() > 0:
        return (
            f"No X meets {goal_text}. The smoothest stream comes from X={smoothest.x} "
            f"(ITL P99 {smoothest.itl_p99_ms:.1f} ms): relax the goals or lower the load."
        )
    chosen = rows[rows.x == recommended_x(rows)].iloc[0]
    listing = ", ".join(f"X={r.x} {r.good_share:.0%}" for r in rows.itertuples())
    return (
        f"For an ITL-sensitive service ({goal_text}) take X={chosen.x}: goodput "
        f"{chosen.goodput_requests_per_s:.2f} requests/s, {chosen.good_share:.0%} of its requests "
        f"are good, ITL P99 {chosen.itl_p99_ms:.1f} ms (good requests: {listing})."
    )

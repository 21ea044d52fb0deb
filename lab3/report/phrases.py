"""How two measurements compare, in Chinese words."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lab3.summary import Spread, within_noise
from lab3.sweep import Trend
from lab3.text_table import number

HIGHER_IS_BETTER = ("tokens_per_s", "requests_per_s", "good_share")


def is_better(metric: str, ratio: float) -> bool:
    """Whether a metric that is ``ratio`` times the other one's is the better of the two."""
    more = any(part in metric for part in HIGHER_IS_BETTER)
    return ratio > 1 if more else ratio < 1


def direction(own: Spread, base: Spread, metric: str) -> str:
    """ "better", "worse", "noise" (the repeats differ as much) or "unknown" (no number)."""
    if math.isnan(own.median) or math.isnan(base.median):
        return "unknown"
    if own.median == base.median:
        return "noise"
    if within_noise(own, base):
        return "noise"
    return "better" if is_better(metric, own.median / (base.median or math.inf)) else "worse"


def compared(own: Spread, base: Spread, metric: str) -> str:
    """ "0.73 倍（变好）", "2.28 倍（变差）" or "0.94 倍（噪声以内）"."""
    if not base.median or math.isnan(own.median / base.median):
        return "无法比较"
    words = {"better": "变好", "worse": "变差", "noise": "噪声以内", "unknown": "无法比较"}
    word = words[direction(own, base, metric)]
    if min(own.n, base.n) < 2:
        word = "单次运行，噪声未知"
    return f"{own.median / base.median:.2f} 倍（{word}）"


def times(ratio: float) -> str:
    """ "11.0 倍"."""
    return f"{number(ratio)} 倍"


def change(value: float) -> str:
    """A relative change of -0.24 as "−24%"."""
    if math.isnan(value):
        return "–"
    percent = round(100 * value)
    return f"{percent:+d}%".replace("-", "−") if percent else "0%"


_TRENDS = {
    "falls": "降低",
    "rises": "升高",
    "flat": "基本不变",
    "noise": "变化在噪声以内",
    "unknown": "无数据",
}


def trend(found: Trend) -> str:
    """How a latency changes over the sweep: "降低，250 → 31.0 ms（0.12 倍）"."""
    first, last = number(found.first.median), number(found.last.median)
    return f"{_TRENDS[found.direction]}，{first} → {last} ms（{found.ratio:.2f} 倍）"


def theory(trends: Sequence[Trend], expected: str) -> str:
    """Whether all of the trends go as expected ("falls" or "rises"), in one word or two."""
    held = [t.name.split()[-1] for t in trends if t.direction == expected]
    if len(held) == len(trends):
        return "成立"
    if held:
        return f"只在 {'、'.join(held)} 上成立"
    against = {"falls": "rises", "rises": "falls"}[expected]
    return "不成立" if any(t.direction == against for t in trends) else "没有显示出来"

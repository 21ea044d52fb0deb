"""Every number the lab reports, defined once: formula, unit, source.

The prose of this file, with its symbols, is docs/metrics.md. Times go in and come out in
milliseconds unless a name says otherwise; arrays are one-dimensional numpy arrays (or anything
numpy reads as one). An undefined value is NaN: the TPOT of a one-token answer, the percentile of
nothing. Nothing here reads a file.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

TINY_GAP_MS = 0.3
"""Gaps between stream chunks below this were not made by the engine: no step is that fast."""

GOODPUT_GAP_PERCENTILE = 99.0
"""The percentile of a request's own gaps that has to stay within the ITL goal."""


@dataclass(frozen=True)
class Metric:
    """What a metric is called, how it is computed and where the definition comes from."""

    name: str
    unit: str
    better: str  # "lower", "higher" or "neither"
    formula: str
    source: str


_VLLM = "vllm bench serve, benchmarks/serve.py calculate_metrics"
_ENGINE = "step record of the scheduler (steps.jsonl)"

METRICS: dict[str, Metric] = {
    "ttft": Metric("time to first token", "ms", "lower", "f_r - s_r", _VLLM),
    "itl": Metric("inter-token latency", "ms", "lower", "g_r,i = c_r,i+1 - c_r,i", _VLLM),
    "engine_ttft": Metric("time to first token in the engine", "ms", "lower", "F_r - A_r", _ENGINE),
    "engine_itl": Metric(
        "inter-token latency in the engine", "ms", "lower", "D_k - D_k' of one request", _ENGINE
    ),
    "e2e": Metric(
        "end-to-end latency, job completion time (JCT)", "ms", "lower", "e_r - s_r", _VLLM
    ),
    "tpot": Metric(
        "time per output token after the first", "ms", "lower", "(e_r - f_r) / (n_r - 1)", _VLLM
    ),
    "max_gap": Metric(
        "longest stall of a request",
        "ms",
        "lower",
        "max_i g_r,i",
        "this lab: P99 of all gaps hides one long stall a request",
    ),
    "output_tokens_per_s": Metric(
        "output throughput", "tokens/s", "higher", "sum n_r / W over r in K", _VLLM
    ),
    "total_tokens_per_s": Metric(
        "total throughput", "tokens/s", "higher", "sum (p_r + n_r) / W over r in K", _VLLM
    ),
    "requests_per_s": Metric("request throughput", "1/s", "higher", "#K / W", _VLLM),
    "goodput": Metric(
        "requests per second that meet both goals",
        "1/s",
        "higher",
        "#{r in K: TTFT_r <= TTFT goal and P99(g_r) <= ITL goal} / W",
        "DistServe (OSDI'24), with the request's P99 gap in place of its mean",
    ),
    "timeout_rate": Metric(
        "requests without a whole answer within TIMEOUT_S",
        "share",
        "lower",
        "#{r: failed or e_r - s_r > TIMEOUT_S} / N",
        "the lab's hand-out",
    ),
    "recompute_tax": Metric(
        "scheduled tokens that had been computed before",
        "share",
        "lower",
        "sum R_k / sum (P_k + G_k)",
        _ENGINE,
    ),
    "mixed_steps": Metric(
        "steps with prefill and decode tokens",
        "share",
        "neither",
        "#{k: P_k > 0 and G_k > 0} / #{k: P_k + G_k > 0}",
        _ENGINE,
    ),
    "step": Metric("engine step time", "ms", "lower", "D_k - max(T_k, D_(k-1))", _ENGINE),
    "tiny_gaps": Metric(
        f"client gaps under {TINY_GAP_MS} ms",
        "share",
        "lower",
        f"#{{g_r,i < {TINY_GAP_MS}}} / #{{g_r,i}}",
        "this lab: fidelity of the client",
    ),
    "jain": Metric(
        "Jain's fairness index",
        "1/n..1",
        "higher",
        "(sum x_c)^2 / (n sum x_c^2)",
        "Jain, Chiu, Hawe, DEC-TR-301 (1984)",
    ),
}


def mean(values: Iterable[float]) -> float:
    """Mean of the defined values; NaN when there are none."""
    known = _known(values)
    return float(known.mean()) if known.size else float("nan")


def percentile(values: Iterable[float], q: float) -> float:
    """The `q`-th percentile (0..100), linear between neighbours as numpy and vLLM do.

    Undefined (NaN) values are left out; NaN when nothing is left.
    """
    known = _known(values)
    return float(np.percentile(known, q)) if known.size else float("nan")


def largest(values: Iterable[float]) -> float:
    """The largest defined value; NaN when there are none."""
    known = _known(values)
    return float(known.max()) if known.size else float("nan")


def tpot_ms(e2e_ms: np.ndarray, ttft_ms: np.ndarray, output_tokens: np.ndarray) -> np.ndarray:
    """Time per output token after the first, one value a request.

    NaN for answers of one token, which have no such time (vLLM leaves them out as well).
    """
    later_tokens = np.asarray(output_tokens, dtype=float) - 1
    decode_ms = np.asarray(e2e_ms, dtype=float) - np.asarray(ttft_ms, dtype=float)
    return np.where(later_tokens > 0, decode_ms / np.maximum(later_tokens, 1), np.nan)


def max_gap_ms(gaps_ms: np.ndarray) -> float:
    """Longest stall of one request; NaN for a request without a second chunk."""
    return largest(gaps_ms)


def share_below(values: Iterable[float], limit: float) -> float:
    """Share (0..1) of the defined values below `limit`; NaN when there are none."""
    known = _known(values)
    return float((known < limit).mean()) if known.size else float("nan")


def per_second(amount: float, window_s: float) -> float:
    """A throughput; NaN for an empty window, which has none."""
    return float(amount) / window_s if window_s > 0 else float("nan")


def meets_goals(
    ttft_ms: np.ndarray, gap_p99_ms: np.ndarray, ttft_goal_ms: float, itl_goal_ms: float
) -> np.ndarray:
    """Which requests count as good, a boolean a request.

    `gap_p99_ms` is each request's own percentile of gaps; a request without gaps (one token) has
    NaN there and is judged by its TTFT alone, as in vLLM. A NaN TTFT (a failed request) is bad.
    """
    ttft_ok = np.asarray(ttft_ms, dtype=float) <= ttft_goal_ms
    gaps = np.asarray(gap_p99_ms, dtype=float)
    return ttft_ok & (np.isnan(gaps) | (gaps <= itl_goal_ms))


def recompute_tax(recomputed_tokens: float, prefill_tokens: float, decode_tokens: float) -> float:
    """Share (0..1) of the scheduled tokens that preemption made the engine compute again."""
    scheduled = prefill_tokens + decode_tokens
    return float(recomputed_tokens) / scheduled if scheduled > 0 else float("nan")


def mixed_step_share(prefill_tokens: np.ndarray, decode_tokens: np.ndarray) -> float:
    """Share (0..1) of the working steps that hold prefill and decode tokens; NaN without steps."""
    prefill, decode = np.asarray(prefill_tokens), np.asarray(decode_tokens)
    working = (prefill + decode) > 0
    if not working.any():
        return float("nan")
    return float(((prefill > 0) & (decode > 0)).sum() / working.sum())


def step_ms(called_s: np.ndarray, done_s: np.ndarray) -> np.ndarray:
    """Time each step kept the engine busy, in ms, from schedule() calls and completions (s).

    A step is counted from its own call or from the end of the step before it, whichever is
    later: under async scheduling the next step is called while this one still runs.
    """
    called, done = np.asarray(called_s, dtype=float), np.asarray(done_s, dtype=float)
    if not done.size:
        return np.empty(0)
    previous_done = np.concatenate(([-np.inf], np.maximum.accumulate(done)[:-1]))
    return (done - np.maximum(called, previous_done)) * 1000.0


def jain_index(shares: Iterable[float]) -> float:
    """Jain's fairness index of what each client got: 1 is equal, 1/n is all for one.

    NaN without clients; 1.0 when nobody got anything, since nobody got more than another.
    """
    x = _known(shares)
    if not x.size:
        return float("nan")
    squares = float((x**2).sum())
    return float(x.sum() ** 2 / (x.size * squares)) if squares > 0 else 1.0


def _known(values: Iterable[float]) -> np.ndarray:
    array = np.asarray(values, dtype=float).ravel()
    return array[~np.isnan(array)]

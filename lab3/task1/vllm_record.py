"""The part of the scheduler's KV record that belongs to one measured pass; no vLLM import."""

from typing import Any


def kv_between(record: dict[str, Any], start_s: float, end_s: float) -> dict[str, Any]:
    """The part of a KV record (``lab3.kv_peak``) in one pass: its peaks, and a series of
    [seconds since the start, tokens, blocks, running requests].

    Raises ValueError when no step lies in the pass: then the record is of another engine.
    """
    points = zip(record["t_s"], record["tokens"], record["blocks"], record["running"], strict=True)
    series = [
        [round(t_s - start_s, 4), tokens, blocks, running]
        for t_s, tokens, blocks, running in points
        if start_s <= t_s <= end_s
    ]
    if not series:
        raise ValueError("the scheduler recorded no step of this pass")
    return {
        "peak_tokens": max(point[1] for point in series),
        "peak_blocks": max(point[2] for point in series),
        "series": series,
    }

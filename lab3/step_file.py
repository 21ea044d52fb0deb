"""Reads the step record that the scheduler writes: one JSON object a line, one line a step."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd

from lab3 import metrics
from lab3.bench_file import ResultError

COUNTS = (
    "prefill_tokens",
    "decode_tokens",
    "prefill_requests",
    "decode_requests",
    "running",
    "waiting",
    "kv_blocks",
    "preemptions",
    "recomputed_tokens",
)


def read_steps(path: Path) -> list[dict[str, Any]]:
    """The lines of a step record; a last line cut by a killed engine is dropped.

    Raises ResultError for a broken line before the last.
    """
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    steps = []
    for number, line in enumerate(lines, start=1):
        try:
            steps.append(json.loads(line))
        except json.JSONDecodeError:
            if number < len(lines):
                raise ResultError(f"{path.name} line {number} is broken: redo the run") from None
    return steps


def steps_frame(steps: list[dict[str, Any]], engine: int = 0) -> pd.DataFrame:
    """Steps of one engine as a table with `step_ms`; counts that a line lacks are 0."""
    frame = pd.DataFrame(
        {
            "t_s": [step["t_s"] for step in steps],
            "done_s": [step.get("done_s", step["t_s"]) for step in steps],
            **{name: [step.get(name, 0) for step in steps] for name in COUNTS},
            "ttft_ms": [step.get("ttft_ms") or [] for step in steps],
            "itl_ms": [step.get("itl_ms") or [] for step in steps],
        }
    )
    frame.insert(2, "step_ms", metrics.step_ms(frame.t_s.to_numpy(), frame.done_s.to_numpy()))
    frame["engine"] = engine
    return frame


def last_counters(steps: list[dict[str, Any]]) -> dict[str, float]:
    """The policy's own running counters as they stood at the end; empty without any."""
    return next((step["counters"] for step in reversed(steps) if "counters" in step), {})


def joined_counters(engines: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Counters of several engines as one: sums, but the largest ``max_...`` and the mean of what
    is a ratio (``..._permille``, ``..._per_...``)."""
    values: dict[str, list[float]] = {}
    for counters in engines:
        for name, value in counters.items():
            values.setdefault(name, []).append(value)
    return {name: _joining(name)(found) for name, found in values.items()}


def _joining(name: str) -> Callable[[list[float]], float]:
    if name.startswith("max_"):
        return max
    return fmean if name.endswith("_permille") or "_per_" in name else sum


def flatten(arrays: Iterable[Any]) -> np.ndarray:
    """Arrays or lists of numbers, one after the other, as one flat array."""
    arrays = [np.asarray(array, dtype=float) for array in arrays]
    return np.concatenate(arrays) if arrays else np.empty(0)


def run_lengths(steps: Iterable[Any]) -> np.ndarray:
    """[[gap, count], ...] of each step as one flat array of gaps."""
    pairs = np.array([pair for step in steps for pair in step], dtype=float).reshape(-1, 2)
    return np.repeat(pairs[:, 0], pairs[:, 1].astype(int))

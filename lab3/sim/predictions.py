"""What the scheduler is told about output lengths. It never sees the true ones.

    predicted(workload, "noise:0.5,bias:1.5,missing:0.3", seed=42)

A specification is "none", "oracle", or parts joined by commas, applied in this order:

    noise:S      true length times a factor of N(1, S), as DLA's authors: sigma = S x L
    bias:B       then times B
    classes:FILE instead of the true length, the median of its class (JSON: see ClassMedians)
    history:Q    instead of it, the quantile Q of the last outputs that had ended before arrival
    missing:M    a share M of the requests has no prediction
"""

from __future__ import annotations

import bisect
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from lab3.sim.workload import Workload

HISTORY_WINDOW = 200
"""So many of the last finished requests make the history quantile."""

HISTORY_TOKENS_PER_S = 25.0
"""Assumed output speed of the requests that feed the history: when each of them had ended."""


@dataclass(frozen=True)
class ClassMedians:
    """Median output by input length: ``bounds`` are the classes' upper input lengths (tokens),
    ``medians`` their output tokens, one more than bounds. The file is the same two lists as a
    JSON object.
    """

    bounds: tuple[int, ...]
    medians: tuple[float, ...]

    @classmethod
    def read(cls, path: Path) -> ClassMedians:
        """Raises ValueError in one line for a file that is missing or has another form."""
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            found = cls(tuple(content["bounds"]), tuple(map(float, content["medians"])))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} holds no class medians: {error}") from None
        if len(found.medians) != len(found.bounds) + 1 or list(found.bounds) != sorted(
            found.bounds
        ):
            raise ValueError(f"{path}: needs sorted bounds and one more median than bounds")
        return found

    @classmethod
    def of(cls, workload: Workload, bounds: Sequence[int]) -> ClassMedians:
        """The medians of ``workload`` itself: use a part that is not simulated afterwards."""
        place = np.searchsorted(bounds, workload.input_tokens, side="left")
        outputs = np.array(workload.output_tokens)
        overall = float(np.median(outputs))
        medians = [
            float(np.median(outputs[place == k])) if (place == k).any() else overall
            for k in range(len(bounds) + 1)
        ]
        return cls(tuple(bounds), tuple(medians))

    def write(self, path: Path) -> None:
        content = {"bounds": list(self.bounds), "medians": list(self.medians)}
        Path(path).write_text(json.dumps(content) + "\n", encoding="utf-8")

    def predict(self, workload: Workload) -> np.ndarray:
        place = np.searchsorted(self.bounds, workload.input_tokens, side="left")
        return np.array(self.medians)[place]


def predicted(workload: Workload, specification: str, *, seed: int = 0) -> Workload:
    """``workload`` with predictions; raises ValueError for a specification with a mistake in it."""
    specification = specification.strip() or "none"
    if specification == "none":
        return replace(workload, predicted_tokens=())
    rng = np.random.default_rng([seed, 0x1E7])
    parts = _parts(specification)
    values = np.array(workload.output_tokens, dtype=float)
    if "classes" in parts:
        values = ClassMedians.read(Path(parts["classes"])).predict(workload)
    if "history" in parts:
        values = history_quantile(workload, _number(parts, "history", 0.0, 1.0))
    if "noise" in parts:
        sigma = _number(parts, "noise", 0.0, np.inf)
        values = values * (1.0 + sigma * rng.standard_normal(len(values)))
    if "bias" in parts:
        values = values * _number(parts, "bias", 0.0, np.inf)
    tokens: list[int | None] = [
        None if np.isnan(v) else int(n) for v, n in zip(values, _whole(values), strict=True)
    ]
    if "missing" in parts:
        lost = rng.random(len(tokens)) < _number(parts, "missing", 0.0, 1.0)
        tokens = [None if gone else n for gone, n in zip(lost, tokens, strict=True)]
    return replace(workload, predicted_tokens=tuple(tokens)).noting(f"predictions: {specification}")


def history_quantile(workload: Workload, quantile: float) -> np.ndarray:
    """For each request the quantile of the last outputs ended by then, NaN while there are none.

    When a request has ended is not known before the simulation; it is taken to end
    ``output / HISTORY_TOKENS_PER_S`` seconds after its arrival.
    """
    outputs, arrivals_s = workload.output_tokens, workload.arrival_s
    ended = sorted(
        (t + n / HISTORY_TOKENS_PER_S, n) for t, n in zip(arrivals_s, outputs, strict=True)
    )
    ends_s = [end for end, _ in ended]
    values = np.full(len(outputs), np.nan)
    for index, arrived_s in enumerate(arrivals_s):
        known = bisect.bisect_right(ends_s, arrived_s)
        window = [n for _, n in ended[max(0, known - HISTORY_WINDOW) : known]]
        if window:
            values[index] = np.quantile(window, quantile)
    return values


def _whole(values: np.ndarray) -> np.ndarray:
    return np.maximum(np.rint(np.nan_to_num(values, nan=1.0)), 1)


_KNOWN: dict[str, Callable[[str], object]] = {
    "oracle": str,
    "noise": float,
    "bias": float,
    "classes": str,
    "history": float,
    "missing": float,
}


def _parts(specification: str) -> dict[str, str]:
    parts: dict[str, str] = {}
    for part in specification.split(","):
        name, colon, value = part.strip().partition(":")
        if name not in _KNOWN or bool(colon) == (name == "oracle"):
            raise ValueError(
                f"unknown prediction {part.strip()!r}; known: none, oracle, noise:S, bias:B, "
                "classes:FILE, history:Q, missing:M, joined by commas"
            )
        parts[name] = value
    return parts


def _number(parts: dict[str, str], name: str, low: float, high: float) -> float:
    try:
        value = float(parts[name])
    except ValueError:
        value = np.nan
    if not low <= value <= high:
        raise ValueError(f"prediction {name} must be a number of {low:g} to {high:g}")
    return value

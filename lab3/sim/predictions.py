"""What the scheduler is told about output lengths. It never sees the true ones.

    predicted(workload, "noise:0.5,bias:1.5,missing:0.3", seed=42)

The specification is that of lab3/predictors.py, which the live predictor reads as well.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from lab3.predictors import History, Specification
from lab3.sim.workload import Workload

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
    parsed = Specification.parse(specification)
    if parsed.is_none:
        return replace(workload, predicted_tokens=())
    tokens = parsed.distorted(_lengths(workload, parsed), np.random.default_rng([seed, 0x1E7]))
    return replace(workload, predicted_tokens=tuple(tokens)).noting(f"predictions: {parsed.text}")


def _lengths(workload: Workload, specification: Specification) -> np.ndarray:
    if specification.constant is not None:
        return np.full(len(workload), specification.constant)
    if specification.classes is not None:
        return ClassMedians.read(Path(specification.classes)).predict(workload)
    if specification.history is not None:
        return history_quantile(workload, specification.history)
    return np.array(workload.output_tokens, dtype=float)


def history_quantile(workload: Workload, quantile: float) -> np.ndarray:
    """For each request the quantile of the last outputs ended by then, NaN while there are none.

    When a request has ended is not known before the simulation; it is taken to end
    ``output / HISTORY_TOKENS_PER_S`` seconds after its arrival.
    """
    history, running = History(quantile), []
    values = np.full(len(workload), np.nan)
    rows = zip(workload.arrival_s, workload.input_tokens, workload.output_tokens, strict=True)
    for index, (arrived_s, prompt, output) in enumerate(rows):
        while running and running[0][0] <= arrived_s:
            history.add(*heapq.heappop(running)[1:])
        values[index] = history.predict(prompt)
        heapq.heappush(running, (arrived_s + output / HISTORY_TOKENS_PER_S, prompt, output))
    return values

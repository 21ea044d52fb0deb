"""How long an engine step takes, learned from the steps just run."""

from collections import deque
from dataclasses import dataclass

import numpy as np

# Brings the three loads to the order of 1, so that one ridge fits all.
_SCALE = (1.0, 1e-3, 1e-2, 1e-5)


@dataclass(frozen=True)
class StepLoad:
    """What a step computes: prompt tokens, sequences that decode, KV tokens these read."""

    prefill_tokens: int
    decode_requests: int
    context_tokens: int

    def features(self) -> tuple[float, ...]:
        """Constant, prefill, decodes, context, scaled."""
        loads = (1.0, self.prefill_tokens, self.decode_requests, self.context_tokens)
        return tuple(load * scale for load, scale in zip(loads, _SCALE, strict=True))


class StepTimer:
    """Measures steps from one completion to the next, as a decoding request feels them.

    With two batches in flight ``schedule()`` runs long before its batch can start, so the time
    between call and completion would count a step twice.
    """

    def __init__(self) -> None:
        self._in_flight: deque[tuple[int, StepLoad, float]] = deque()
        self._last_done_s = 0.0
        self._was_busy = False

    def scheduled(self, step: int, load: StepLoad, called_s: float) -> None:
        """``schedule()`` was called at ``called_s`` and made the batch ``step``."""
        self._in_flight.append((step, load, called_s))

    def done(self, step: int, now_s: float, busy: bool) -> tuple[StepLoad, float] | None:
        """The batch ``step`` is done: its load and milliseconds, None for an unknown batch.

        ``busy``: requests are still running, so the next step follows at once.
        """
        started_s = self._last_done_s if self._was_busy else None
        self._last_done_s, self._was_busy = now_s, busy
        while self._in_flight:
            scheduled, load, called_s = self._in_flight.popleft()
            if scheduled == step:
                return load, 1e3 * (now_s - (called_s if started_s is None else started_s))
        return None


class StepTimeModel:
    """``ms = constant + a * prefill tokens + b * decodes + c * context tokens``, all >= 0.

    Least squares over the steps seen, where a step counts ``memory`` times as much as the one
    after it: the fit follows the load. A step of more than ``outlier`` times its prediction (a
    garbage collection, a pause) counts as that much only. The coefficients are solved for anew
    every eighth step.
    """

    _SOLVE_EVERY = 8

    def __init__(self, memory: float = 0.995, outlier: float = 4.0, min_steps: int = 20) -> None:
        self._memory = memory
        self._outlier = outlier
        self._min_steps = min_steps
        self._moment = np.zeros((4, 4))
        self._target = np.zeros(4)
        # Plain numbers, solved for when a step is done: NumPy would give up the GIL in schedule().
        self._coefficients = [0.0] * len(_SCALE)
        self.num_steps = 0

    @property
    def is_ready(self) -> bool:
        """Whether enough steps were seen to predict one."""
        return self.num_steps >= self._min_steps

    def observe(self, load: StepLoad, step_ms: float) -> None:
        """Learn that a step with ``load`` took ``step_ms`` milliseconds."""
        if self.is_ready:
            step_ms = min(step_ms, self._outlier * self.predict_ms(load))
        features = np.array(load.features())
        self._moment = self._memory * self._moment + np.outer(features, features)
        self._target = self._memory * self._target + step_ms * features
        if self.num_steps % self._SOLVE_EVERY == 0 or not self.is_ready:
            self._coefficients = _non_negative_solution(self._moment, self._target).tolist()
        self.num_steps += 1

    def predict_ms(self, load: StepLoad) -> float:
        """Milliseconds that a step with ``load`` takes; 0 before anything was observed."""
        pairs = zip(self._coefficients, load.features(), strict=True)
        return sum(coefficient * feature for coefficient, feature in pairs)

    @property
    def ms_per_prefill_token(self) -> float:
        return self._coefficients[1] * _SCALE[1]

    def prefill_tokens_within(self, target_ms: float, load: StepLoad) -> float:
        """Prompt tokens that fit into ``target_ms`` beside the decodes of ``load``.

        May be negative (the decodes alone take longer) or infinite (prefill costs nothing that
        can be measured).
        """
        decodes_only = StepLoad(0, load.decode_requests, load.context_tokens)
        spare_ms = target_ms - self.predict_ms(decodes_only)
        ms_per_token = self.ms_per_prefill_token
        return spare_ms / ms_per_token if ms_per_token > 0 else float("inf")


def _non_negative_solution(moment: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Solves ``moment @ x = target`` with x >= 0; a load that seems to save time counts as free.

    ``moment`` has shape (4, 4), ``target`` and the result (4,).
    """
    ridge = 1e-6 * (1.0 + np.trace(moment)) * np.eye(len(target))
    free = np.ones(len(target), dtype=bool)
    solution = np.zeros(len(target))
    while free.any():
        part = np.linalg.solve((moment + ridge)[free][:, free], target[free])
        solution[:] = 0.0
        solution[free] = part
        if part.min() >= 0:
            return solution
        free[min(range(len(target)), key=solution.__getitem__)] = False
    return np.zeros(len(target))

"""How much KV the running requests will need at their worst moment (Gong et al., 2025)."""

from collections.abc import Iterable

import numpy as np


class FuturePeak:
    """The largest number of KV tokens that a batch will hold if it runs undisturbed.

    Every request grows by one token a step and gives everything back when it is done. The sum is
    largest just before one of them ends, so only these moments are looked at: with the requests
    sorted by remaining tokens, most first, the first k hold ``sum(held[:k]) + k * remaining[k-1]``
    when number k ends.

    ``used_tokens``: what the pool really holds for them, if that differs from the sum: less when
    prefixes are shared, more where the last blocks are partly empty.
    """

    def __init__(
        self, requests: Iterable[tuple[float, float]], used_tokens: float | None = None
    ) -> None:
        """``requests``: (tokens held, tokens remaining) of each."""
        pairs = np.array(list(requests), dtype=float).reshape(-1, 2)
        held, remaining = pairs[:, 0], pairs[:, 1]
        if used_tokens is not None and held.sum() > 0:
            held = held * (used_tokens / held.sum())
        order = np.argsort(-remaining, kind="stable")
        self._held = held[order]
        self._remaining = remaining[order]

    def peak(self) -> float:
        """Tokens at the worst moment; 0 without requests."""
        return _peak(self._held, self._remaining)

    def peak_with(self, held: float, remaining: float) -> float:
        """The same with one more request in the batch."""
        return _peak(*self._inserted(held, remaining))

    def add(self, held: float, remaining: float) -> None:
        """One more request joins the batch."""
        self._held, self._remaining = self._inserted(held, remaining)

    def _inserted(self, held: float, remaining: float) -> tuple[np.ndarray, np.ndarray]:
        at = np.searchsorted(-self._remaining, -remaining, side="right")
        return np.insert(self._held, at, held), np.insert(self._remaining, at, remaining)


def _peak(held: np.ndarray, remaining: np.ndarray) -> float:
    if not len(held):
        return 0.0
    return float(np.max(np.cumsum(held) + np.arange(1, len(held) + 1) * remaining))

"""How much KV the running requests will need at their worst moment (Gong et al., 2025)."""

from collections.abc import Sequence

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
        self,
        held_tokens: Sequence[float],
        remaining_tokens: Sequence[float],
        used_tokens: float | None = None,
    ) -> None:
        """One number in each sequence for each request."""
        held = np.array(held_tokens, dtype=float)
        remaining = np.array(remaining_tokens, dtype=float)
        if used_tokens is not None and len(held):
            held *= used_tokens / held.sum()
        order = np.argsort(-remaining, kind="stable")
        self._held = held[order]
        self._remaining = remaining[order]

    def peak(self) -> float:
        """Tokens at the worst moment; 0 without requests."""
        growth = np.arange(1, len(self._held) + 1) * self._remaining
        return float(np.max(np.cumsum(self._held) + growth, initial=0.0))

    def peak_with(self, held: float, remaining: float) -> float:
        """The same with one more request in the batch."""
        at = self._place(remaining)
        sums = np.cumsum(self._held)
        numbers = np.arange(1, len(sums) + 1)
        numbers[at:] += 1
        sums[at:] += held
        others = np.max(sums + numbers * self._remaining, initial=0.0)
        before = sums[at - 1] if at else 0.0
        return float(max(others, before + held + (at + 1) * remaining))

    def add(self, held: float, remaining: float) -> None:
        """One more request joins the batch."""
        at = self._place(remaining)
        self._held = np.insert(self._held, at, held)
        self._remaining = np.insert(self._remaining, at, remaining)

    def _place(self, remaining: float) -> int:
        return int(np.searchsorted(-self._remaining, -remaining, side="right"))

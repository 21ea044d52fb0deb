"""How much KV the running requests will need at their worst moment (Gong et al., 2025)."""

from bisect import bisect_right
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
        # NumPy's own sort and search give up the GIL: schedule() would wait for other threads.
        order = sorted(range(len(held)), key=(-remaining).tolist().__getitem__)
        self._take(held[order], remaining[order])

    def peak(self) -> float:
        """Tokens at the worst moment; 0 without requests."""
        self._look_ahead()
        return float(self._worst_before[-1])

    def peak_with(self, held: float, remaining: float) -> float:
        """The same with one more request in the batch."""
        self._look_ahead()
        at = self._place(remaining)
        own_end = self._sums[at] + held + (at + 1) * remaining
        return float(max(self._worst_before[at], own_end, self._worst_beside[at] + held))

    def add(self, held: float, remaining: float) -> None:
        """One more request joins the batch."""
        at = self._place(remaining)
        self._take(
            np.concatenate((self._held[:at], [held], self._held[at:])),
            np.concatenate((self._remaining[:at], [remaining], self._remaining[at:])),
        )

    def _take(self, held: np.ndarray, remaining: np.ndarray) -> None:
        """The batch, most remaining first."""
        self._held, self._remaining, self._key = held, remaining, (-remaining).tolist()
        self._sums: np.ndarray | None = None

    def _place(self, remaining: float) -> int:
        return bisect_right(self._key, -remaining)

    def _look_ahead(self) -> None:
        """All moments of the batch at once, when they are asked for.

        ``_worst_before[k]``: most tokens at an end of the first k. ``_worst_beside[k]``: the same
        for those from k on if one request without tokens of its own goes on beside them.
        """
        if self._sums is not None:
            return
        num_requests = len(self._held)
        self._sums = np.zeros(num_requests + 1)
        self._held.cumsum(out=self._sums[1:])
        ends = self._sums[1:] + np.arange(1, num_requests + 1) * self._remaining
        self._worst_before = np.zeros(num_requests + 1)
        np.maximum.accumulate(ends, out=self._worst_before[1:])
        self._worst_beside = np.zeros(num_requests + 1)
        beside = (ends + self._remaining)[::-1]
        np.maximum.accumulate(beside, out=self._worst_beside[:-1][::-1])

"""How much KV the running requests will need at their worst moment (Gong et al., 2025)."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate


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
        held_sum = sum(held_tokens)
        scale = used_tokens / held_sum if used_tokens is not None and held_sum else 1.0
        batch = sorted(zip(remaining_tokens, held_tokens, strict=True), reverse=True)
        self._held = [held * scale for _, held in batch]
        # Negative, so that it is in rising order.
        self._remaining = [-remaining for remaining, _ in batch]
        self._sums: list[float] = []

    def peak(self) -> float:
        """Tokens at the worst moment; 0 without requests."""
        self._look_ahead()
        return self._worst_before[-1]

    def peak_with(self, held: float, remaining: float) -> float:
        """The same with one more request in the batch."""
        self._look_ahead()
        at = bisect_right(self._remaining, -remaining)
        own_end = self._sums[at] + held + (at + 1) * remaining
        return max(self._worst_before[at], own_end, self._worst_beside[at] + held)

    def add(self, held: float, remaining: float) -> None:
        """One more request joins the batch."""
        at = bisect_right(self._remaining, -remaining)
        self._remaining.insert(at, -remaining)
        self._held.insert(at, held)
        self._sums = []

    def _look_ahead(self) -> None:
        """All moments of the batch at once, when they are asked for.

        ``_worst_before[k]``: most tokens at an end of the first k. ``_worst_beside[k]``: the same
        for those from k on if one request without tokens of its own goes on beside them.
        """
        if self._sums:
            return
        self._sums = [0.0, *accumulate(self._held)]
        ends, beside = [], []
        for count, negative in enumerate(self._remaining, start=1):
            end = self._sums[count] - count * negative
            ends.append(end)
            beside.append(end - negative)
        self._worst_before = [0.0, *accumulate(ends, max)]
        self._worst_beside = [*accumulate(reversed(beside), max, initial=0.0)][::-1]

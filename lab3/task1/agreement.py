"""Whether two plans wrote the same tokens, and where they part."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Agreement:
    """``identical`` of ``compared`` sequences are equal. ``first_differences``: for each of the
    others the position (0 = first new token) where the two part, in the order of the prompts."""

    compared: int
    identical: int
    first_differences: tuple[int, ...]

    @property
    def share(self) -> float:
        """Share of equal sequences, 0..1."""
        return self.identical / self.compared

    @property
    def earliest(self) -> int | None:
        return min(self.first_differences, default=None)

    @property
    def median(self) -> float | None:
        return statistics.median(self.first_differences) if self.first_differences else None


def compare(one: Sequence[Sequence[int]], other: Sequence[Sequence[int]]) -> Agreement:
    """Compare two plans' tokens, prompt by prompt; a sequence that ends earlier differs there.

    Raises ValueError when the plans answered different numbers of prompts, or none.
    """
    if len(one) != len(other) or not one:
        raise ValueError(f"cannot compare {len(one)} answers with {len(other)}")
    places = [first_difference(a, b) for a, b in zip(one, other, strict=True)]
    different = tuple(place for place in places if place is not None)
    return Agreement(len(places), len(places) - len(different), different)


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """Position of the first token that differs, None when the sequences are equal."""
    for i, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return i
    return None if len(one) == len(other) else min(len(one), len(other))

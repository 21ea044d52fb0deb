"""Whom to evict when the KV pool is full: the running request with the largest score."""

from typing import Literal, TypeVar, get_args

import numpy as np

VictimRule = Literal["remaining", "remaining_per_context", "least_computed", "upstream"]
VICTIM_RULES: tuple[str, ...] = get_args(VictimRule)


Number = TypeVar("Number", int, np.ndarray)


def eviction_score(
    rule: VictimRule, remaining_tokens: Number, computed_tokens: Number
) -> float | np.ndarray:
    """Larger goes first. Numbers of one request, or arrays of shape (requests,).

    ``remaining``: most output still to come; who is nearly done keeps its blocks and soon gives
    them back. ``remaining_per_context``: most output to come for each token of KV that eviction
    throws away. ``least_computed``: least thrown away, whatever is to come.
    """
    if rule == "remaining":
        return remaining_tokens
    if rule == "remaining_per_context":
        return remaining_tokens / np.maximum(computed_tokens, 1)
    if rule == "least_computed":
        return -computed_tokens
    raise ValueError(f"no score for victim rule {rule!r}")

"""Whom to evict when the KV pool is full: the running request with the largest score."""

from typing import Literal, get_args

VictimRule = Literal["remaining", "remaining_per_context", "least_computed", "upstream"]
VICTIM_RULES: tuple[str, ...] = get_args(VictimRule)


def eviction_score(rule: VictimRule, remaining_tokens: int, computed_tokens: int) -> float:
    """Larger goes first; the numbers of one request.

    ``remaining``: most output still to come; who is nearly done keeps its blocks and soon gives
    them back. ``remaining_per_context``: most output to come for each token of KV that eviction
    throws away. ``least_computed``: least thrown away, whatever is to come.
    """
    if rule == "remaining":
        return remaining_tokens
    if rule == "remaining_per_context":
        return remaining_tokens / max(computed_tokens, 1)
    if rule == "least_computed":
        return -computed_tokens
    raise ValueError(f"no score for victim rule {rule!r}")

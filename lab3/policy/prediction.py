"""What is known about a request's output length before it ends."""

import math
from typing import Any

# With nothing better to go by, a request that has produced g tokens has g/4 to go. Lengths of
# real outputs are heavy-tailed: the longer one has run, the longer it will still run.
OVERRUN_SHARE = 0.25


def parse_prediction(value: Any, max_tokens: int) -> int | None:
    """``predicted_length`` as a number of output tokens within [1, ``max_tokens``], or None.

    Whole numbers of 1 or more are taken as they are, finite fractions of 1 or more are rounded
    up, both are cut to ``max_tokens``. Zero, negative numbers, NaN, infinity, text (also "12"),
    booleans and lists say nothing: None. Never raises.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not 1 <= value < math.inf:
        return None
    return min(math.ceil(value), max(max_tokens, 1))


def remaining_tokens(predicted: int | None, generated: int, max_tokens: int) -> int:
    """Output tokens still expected, at least 1 and at most what ``max_tokens`` leaves.

    Without a prediction that is what ``max_tokens`` leaves.
    A prediction that was outlived (``generated >= predicted``) is worth nothing any more: a
    quarter of what was generated is expected to follow.
    """
    left = max(max_tokens - generated, 1)
    if predicted is None:
        return left
    if generated < predicted:
        return min(predicted - generated, left)
    return min(max(math.ceil(OVERRUN_SHARE * generated), 1), left)

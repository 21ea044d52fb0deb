"""What is known about a request's output length before it ends."""

import math
from typing import Any

# Lengths of real outputs are heavy-tailed: the longer one has run, the longer it will still run.
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


def expected_tokens(predicted: int, generated: int, max_tokens: int) -> int:
    """Output tokens that a batch should make room for, at least 1, at most ``max_tokens`` leaves.

    A request that outlived its prediction (``generated >= predicted``) is expected to go on for a
    quarter of what it has generated; ``predicted`` 0 stands for a request without one.
    """
    left = max(max_tokens - generated, 1)
    if generated < predicted:
        return min(predicted - generated, left)
    return min(max(math.ceil(OVERRUN_SHARE * generated), 1), left)


def claimed_tokens(predicted: int | None, generated: int, max_tokens: int) -> int:
    """Output tokens to come when requests are compared as victims, at least 1.

    Without a prediction that is all that ``max_tokens`` leaves, and so it is for a request that
    outlived its prediction: the prediction is void. Whoever predicts too low is thus protected
    for a while and exposed afterwards, when more of its work is lost; it gains nothing by it.
    """
    left = max(max_tokens - generated, 1)
    if predicted is None or generated >= predicted:
        return left
    return min(predicted - generated, left)


class TrackRecord:
    """How much of their predictions finished answers used; the last hundred or so count.

    A predictor that says half as much again as comes makes an admission by prediction leave a
    third of the pool empty. What it says too little needs no correction here: requests that
    outlive their predictions are counted anyway.
    """

    _MEMORY = 0.99
    _LEAST_ANSWERS = 20

    def __init__(self) -> None:
        self._predicted = self._generated = 0.0
        self.answers = 0

    def add(self, predicted: int, generated: int) -> None:
        """One more answer ended, after ``generated`` tokens."""
        self._predicted = self._MEMORY * self._predicted + predicted
        self._generated = self._MEMORY * self._generated + generated
        self.answers += 1

    @property
    def used_share(self) -> float:
        """Generated over predicted tokens, at most 1; 1 until 20 answers have ended."""
        if self.answers < self._LEAST_ANSWERS:
            return 1.0
        return min(self._generated / self._predicted, 1.0)

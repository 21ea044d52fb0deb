"""How many tokens a step may hold."""


def linear_budget(max_tokens: int, min_tokens: int, running: int, seats: int) -> int:
    """The lab's plain rule: ``max_tokens`` when nothing runs, ``min_tokens`` when every seat is
    taken, a straight line between."""
    crowding = min(running / seats, 1.0)
    return round(max_tokens - (max_tokens - min_tokens) * crowding)


def bounded_budget(decode_tokens: int, prefill_tokens: float, min_chunk: int, most: int) -> int:
    """The decodes' own tokens plus ``prefill_tokens``, which are at least ``min_chunk``.

    Never more than ``most``. ``prefill_tokens`` may be negative or infinite.
    """
    return int(min(decode_tokens + max(prefill_tokens, min_chunk), most))

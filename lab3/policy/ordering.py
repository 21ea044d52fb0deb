"""Order of the waiting queue by size, with aging."""


def aged_size(size_tokens: float, arrival_s: float, aging_tokens_per_s: float) -> float:
    """Sort key of shortest-job-first with linear aging, smallest first.

    A request that has waited w seconds counts as ``size - aging * w`` tokens. At any instant that
    orders requests like ``size + aging * arrival``, since the common ``-aging * now`` cancels: a
    static key, so a heap serves it and nothing is sorted again as time passes.

    With aging a > 0 nobody starves: a request of s tokens is overtaken only by requests of s' < s
    tokens that arrive within ``(s - s') / a`` seconds after it. With a = 0 it may wait for ever.
    """
    return size_tokens + aging_tokens_per_s * arrival_s

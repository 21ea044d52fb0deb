"""The future peak, against a step-by-step count of the same batch."""

import random

import pytest

from lab3.policy.admission import FuturePeak


def _peak_by_counting(batch: list[tuple[int, int]]) -> int:
    peak = 0
    for step in range(max((remaining for _, remaining in batch), default=0) + 1):
        peak = max(peak, sum(held + step for held, remaining in batch if remaining >= step))
    return peak


def _future_peak(batch: list[tuple[int, int]], **options: float) -> FuturePeak:
    return FuturePeak([held for held, _ in batch], [left for _, left in batch], **options)


@pytest.mark.parametrize("seed", range(50))
def test_the_peak_is_that_of_counting_every_step(seed):
    rng = random.Random(seed)
    batch = [(rng.randint(1, 500), rng.randint(1, 80)) for _ in range(rng.randint(0, 30))]
    assert _future_peak(batch).peak() == _peak_by_counting(batch)


@pytest.mark.parametrize("seed", range(20))
def test_asking_for_one_more_and_adding_it_agree_with_starting_over(seed):
    rng = random.Random(seed)
    batch = [(rng.randint(1, 500), rng.randint(1, 80)) for _ in range(10)]
    peak = _future_peak(batch[:4])
    for held, remaining in batch[4:]:
        asked = peak.peak_with(held, remaining)
        peak.add(held, remaining)
        assert peak.peak() == asked
    assert peak.peak() == _peak_by_counting(batch)


def test_a_short_request_fits_beside_a_long_one_that_would_not_fit_beside_another_long_one():
    running = _future_peak([(500, 400)])
    assert running.peak_with(80, 5) < 950
    assert running.peak_with(80, 400) > 950


def test_shared_prefixes_count_once():
    batch = [(1000, 10)] * 8
    assert _future_peak(batch).peak() == 8 * 1010
    assert _future_peak(batch, used_tokens=1800).peak() == 1800 + 8 * 10


def test_an_empty_batch_needs_nothing():
    assert _future_peak([]).peak() == 0
    assert _future_peak([], used_tokens=0).peak_with(100, 20) == 120

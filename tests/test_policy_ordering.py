"""Shortest job first with linear aging."""

import random

import pytest

from lab3.policy.ordering import aged_size


@pytest.mark.parametrize("aging", [0.0, 50.0, 1000.0])
def test_the_static_key_orders_like_size_less_the_time_waited(aging):
    rng = random.Random(0)
    jobs = [(rng.randint(1, 2000), rng.uniform(0, 30)) for _ in range(200)]
    by_key = sorted(jobs, key=lambda job: aged_size(*job, aging))
    for now_s in (30.0, 500.0):
        by_wait = sorted(jobs, key=lambda job: job[0] - aging * (now_s - job[1]))
        assert by_key == by_wait


def test_without_aging_only_size_counts():
    assert aged_size(10, 1e9, 0.0) < aged_size(11, 0.0, 0.0)


def test_nobody_passes_who_comes_later_than_the_difference_in_size_allows():
    long, aging = aged_size(1000, 0.0, 100.0), 100.0
    assert aged_size(10, 9.89, aging) < long
    assert aged_size(10, 9.91, aging) > long

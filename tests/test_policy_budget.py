"""How many tokens a step may hold."""

import pytest

from lab3.policy.budget import bounded_budget, linear_budget


def test_the_linear_rule_goes_from_all_to_the_least_as_seats_fill():
    budgets = [linear_budget(2048, 64, running, 16) for running in range(17)]
    assert budgets[0] == 2048
    assert budgets[-1] == 64
    assert budgets == sorted(budgets, reverse=True)
    assert linear_budget(2048, 64, 30, 16) == 64


@pytest.mark.parametrize(
    ("prefill", "expected"),
    [(100.0, 110), (5.0, 42), (-300.0, 42), (float("inf"), 512), (1e9, 512)],
)
def test_a_budget_holds_the_decodes_and_a_least_chunk_and_no_more_than_there_is(prefill, expected):
    assert bounded_budget(10, prefill, min_chunk=32, most=512) == expected


def test_the_bound_holds_when_decodes_alone_fill_the_budget():
    assert bounded_budget(512, 100.0, min_chunk=32, most=512) == 512

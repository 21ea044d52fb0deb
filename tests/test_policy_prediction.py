"""Output lengths: what a request says, and what is made of it."""

import math

import pytest

from lab3.policy.prediction import (
    TrackRecord,
    claimed_tokens,
    expected_tokens,
    parse_prediction,
)


@pytest.mark.parametrize(
    ("value", "tokens"),
    [(1, 1), (80, 80), (1.0, 1), (1.5, 2), (99.01, 100), (101, 100), (2**63, 100), (1e308, 100)],
)
def test_numbers_of_one_or_more_count_up_to_max_tokens(value, tokens):
    parsed = parse_prediction(value, max_tokens=100)
    assert parsed == tokens
    assert type(parsed) is int


@pytest.mark.parametrize(
    "value",
    [None, 0, -5, 0.5, -0.0, math.nan, math.inf, -math.inf, True, False, "12", "abc", "", [1, 2],
     {}, b"8", 1 + 0j],
)  # fmt: skip
def test_everything_else_says_nothing(value):
    assert parse_prediction(value, max_tokens=100) is None


def test_a_prediction_counts_down_and_is_right_to_the_last_token():
    for generated in range(80):
        assert claimed_tokens(80, generated, 500) == 80 - generated
        assert expected_tokens(80, generated, 500) == 80 - generated


def test_without_a_prediction_max_tokens_is_the_claim():
    assert claimed_tokens(None, 30, 500) == 470


@pytest.mark.parametrize("generated", range(80, 500, 7))
def test_whoever_outlives_its_prediction_is_worse_off_than_the_honest(generated):
    honest = claimed_tokens(500, generated, 500)
    assert claimed_tokens(80, generated, 500) >= honest
    assert claimed_tokens(1, generated, 500) >= honest


def test_an_outlived_prediction_is_expected_to_go_on_for_a_quarter():
    assert expected_tokens(80, 80, 1000) == 20
    assert expected_tokens(80, 401, 1000) == 101
    assert expected_tokens(0, 0, 1000) == 1


@pytest.mark.parametrize("tokens", [claimed_tokens, expected_tokens])
@pytest.mark.parametrize("predicted", [0, 1, 50, 99, 100, 10_000])
def test_there_is_always_one_token_to_come_and_never_more_than_max_tokens_leaves(tokens, predicted):
    for generated in range(100):
        assert 1 <= tokens(predicted, generated, 100) <= 100 - generated
    # A stop token may not count as output: more than max_tokens must not go below one.
    assert tokens(predicted, 120, 100) == 1


def track_record(pairs):
    record = TrackRecord()
    for predicted, generated in pairs:
        record.add(predicted, generated)
    return record


@pytest.mark.parametrize(
    ("pairs", "share"),
    [
        ([], 1.0),
        ([(150, 100)] * 19, 1.0),
        ([(150, 100)] * 20, 2 / 3),
        ([(150, 100), (15, 10)] * 50, 2 / 3),
        ([(100, 100)] * 50, 1.0),
        ([(1, 100)] * 50, 1.0),
    ],
)
def test_predictions_are_believed_as_far_as_they_came_true(pairs, share):
    assert track_record(pairs).used_share == pytest.approx(share)


def test_recent_answers_count_most():
    record = track_record([(200, 100)] * 500 + [(100, 100)] * 500)
    assert record.used_share > 0.98

"""Comparing greedy tokens of two plans."""

import pytest

from lab3.task1.agreement import compare, first_difference


def test_counts_equal_sequences_and_finds_where_others_part() -> None:
    found = compare([[1, 2, 3], [1, 2, 3], [9, 2], [4]], [[1, 2, 3], [1, 5, 3], [8, 2], [4]])
    assert (found.compared, found.identical, found.share) == (4, 2, 0.5)
    assert found.first_differences == (1, 0)
    assert (found.earliest, found.median) == (0, 0.5)


def test_a_sequence_that_ends_earlier_differs_there() -> None:
    assert first_difference([1, 2], [1, 2, 3]) == 2
    assert first_difference([], [1]) == 0
    assert first_difference([1, 2], [1, 2]) is None


def test_nothing_differs() -> None:
    found = compare([[1]], [[1]])
    assert (found.share, found.earliest, found.median) == (1, None, None)


def test_refuses_plans_of_different_size() -> None:
    with pytest.raises(ValueError, match="1 answers with 2"):
        compare([[1]], [[1], [2]])
    with pytest.raises(ValueError, match="0 answers"):
        compare([], [])

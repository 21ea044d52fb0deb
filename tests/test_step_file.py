"""The step record: whole, cut, thinned out."""

import json

import numpy as np
import pytest

from lab3.bench_file import ResultError
from lab3.step_file import (
    flatten,
    joined_counters,
    last_counters,
    read_steps,
    run_lengths,
    steps_frame,
)

STEP = {"t_s": 1.0, "done_s": 1.1, "prefill_tokens": 5, "decode_tokens": 2}


def test_a_last_line_that_was_cut_is_dropped(tmp_path):
    path = tmp_path / "steps.jsonl"
    path.write_text(json.dumps(STEP) + "\n" + json.dumps(STEP)[:-9])
    assert read_steps(path) == [STEP]


def test_a_broken_line_in_the_middle_is_refused(tmp_path):
    path = tmp_path / "steps.jsonl"
    path.write_text(json.dumps(STEP)[:-9] + "\n" + json.dumps(STEP) + "\n")
    with pytest.raises(ResultError, match="line 1"):
        read_steps(path)


def test_an_empty_record_has_no_steps(tmp_path):
    path = tmp_path / "steps.jsonl"
    path.write_text("")
    assert read_steps(path) == []
    assert len(steps_frame([])) == 0


def test_counts_that_a_line_lacks_are_zero():
    frame = steps_frame([STEP])
    assert frame.preemptions.tolist() == [0]
    assert frame.prefill_tokens.tolist() == [5]
    assert frame.step_ms.tolist() == pytest.approx([100])


def test_gaps_are_stored_as_run_lengths():
    assert run_lengths([[[5.0, 3], [7.5, 1]], [], [[5.0, 1]]]).tolist() == [5, 5, 5, 7.5, 5]
    assert run_lengths([]).tolist() == []


def test_flatten_joins_what_steps_have_and_takes_none():
    assert flatten([[1.0], [], [2.0, 3.0]]).tolist() == [1, 2, 3]
    assert isinstance(flatten([]), np.ndarray)


def test_counters_are_the_last_ones_written():
    steps = [STEP | {"counters": {"victims": 1}}, STEP | {"counters": {"victims": 4}}, STEP]
    assert last_counters(steps) == {"victims": 4}
    assert last_counters([STEP]) == {}


def test_counters_of_two_engines_are_added_where_adding_makes_sense():
    one = {"victims": 2, "max_gap_tokens": 90, "jain_index_permille": 900, "us_per_token": 4}
    two = {"victims": 3, "max_gap_tokens": 40, "jain_index_permille": 700, "held_back": 1}
    assert joined_counters([one, two, {}]) == {
        "victims": 5,
        "max_gap_tokens": 90,
        "jain_index_permille": 800,
        "us_per_token": 4,
        "held_back": 1,
    }

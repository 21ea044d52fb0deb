"""Settings: what a user may write, and one clear line for what he may not."""

import math
from dataclasses import dataclass
from typing import Literal

import pytest

from lab3.settings import Settings, require


@dataclass(frozen=True)
class Example(Settings):
    count: int = 3
    share: float = 0.5
    mode: Literal["fast", "slow"] = "fast"

    def __post_init__(self) -> None:
        require(self.count >= 0, "count must be 0 or more")


def test_nothing_said_means_the_defaults():
    assert Example.parse(None) == Example.parse({}) == Example()


def test_values_are_taken_as_written():
    raw = {"count": 7, "share": 1.5, "mode": "slow", "disabled": True, "record": "x.jsonl"}
    parsed = Example.parse(raw)
    assert {key: getattr(parsed, key) for key in raw} == raw


def test_a_whole_number_serves_as_a_fraction():
    assert Example.parse({"share": 2}).share == 2.0
    assert type(Example.parse({"share": 2}).share) is float


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ({"coutn": 1}, "did you mean 'count'"),
        ({"zzz": 1}, "known: count, disabled, mode, record, share"),
        ({"count": "7"}, "count must be a int, not '7'"),
        ({"count": True}, "count must be a int"),
        ({"count": 1.0}, "count must be a int"),
        ({"share": math.nan}, "share must be a float"),
        ({"share": math.inf}, "share must be a float"),
        ({"share": False}, "share must be a float"),
        ({"mode": "medium"}, "mode must be one of fast, slow"),
        ({"mode": ["fast"]}, "mode must be one of"),
        ({"disabled": 1}, "disabled must be a bool"),
        ({"record": None}, "record must be a str"),
        ({"count": -1}, "count must be 0 or more"),
        ([1], "must be an object"),
        ("text", "must be an object"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_class_and_the_cure(raw, words):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        Example.parse(raw, "ExampleScheduler")
    message = str(error.value)
    assert words in message
    assert "ExampleScheduler" in message
    assert "\n" not in message

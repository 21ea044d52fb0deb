"""Specifications of predictions, and the history that live predictor and simulator share."""

import math

import numpy as np
import pytest

from lab3.predictors import HISTORY_MIN_CLASS, HISTORY_WINDOW, History, Specification


def draw(text: str, lengths: list[float], seed: int = 0) -> list[int | None]:
    return Specification.parse(text).distorted(lengths, np.random.default_rng(seed))


@pytest.mark.parametrize("text", ["", "none", " none "])
def test_nothing_is_predicted_unless_asked_for(text: str) -> None:
    assert Specification.parse(text).is_none


def test_a_specification_says_what_it_was_made_of() -> None:
    made = Specification.parse(" history:0.9 , noise:0.5,liars:0.2")
    assert made.text == "history:0.9,noise:0.5,liars:0.2"
    assert (made.history, made.noise, made.liars, made.bias) == (0.9, 0.5, 0.2, None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("orcale", "unknown prediction 'orcale'; known: none, oracle"),
        ("oracle:1", "unknown prediction 'oracle:1'"),
        ("noise", "unknown prediction 'noise'"),
        ("oracle,", "unknown prediction ''"),
        ("noise:1,noise:2", "noise is given twice"),
        ("history:0.5,constant:3", "give one source of predictions, not history and constant"),
        ("history:2", "history must be a number of 0 to 1"),
        ("constant:0", "constant must be a number of 1 or more"),
        ("noise:inf", "noise must be a number of 0 or more"),
        ("noise:nan", "noise must be a number of 0 or more"),
        ("liars:x", "liars must be a number of 0 to 1"),
    ],
)
def test_a_mistake_is_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        Specification.parse(text)
    assert "\n" not in str(caught.value)


def test_parts_are_applied_in_their_order() -> None:
    assert draw("oracle", [7, 1000]) == [7, 1000]
    assert draw("bias:1.5", [7, 1000]) == [10, 1500]  # 10.5 rounds to the even one
    assert draw("constant:9,bias:2", [9]) == [18]
    assert draw("bias:0", [7]) == [1], "never less than a token"
    assert draw("missing:1,liars:1", [7]) == [1], "who lies, lies whatever was predicted"
    assert draw("missing:1", [7]) == [None]
    assert draw("noise:1", [math.nan]) == [None], "nothing known, nothing predicted"


def test_shares_and_noise_are_those_asked_for() -> None:
    lengths = [200.0] * 4000
    noisy = np.array(draw("noise:0.2", lengths), dtype=float)
    assert noisy.std() == pytest.approx(40, rel=0.1)
    lies = draw("oracle,liars:0.2", lengths)
    assert set(lies) == {1, 200}
    assert lies.count(1) / 4000 == pytest.approx(0.2, abs=0.03)
    assert draw("noise:1", lengths, seed=1) != draw("noise:1", lengths, seed=2)


def test_history_forgets_what_is_old() -> None:
    history = History(0.5)
    assert math.isnan(history.predict(10))
    for _ in range(HISTORY_WINDOW):
        history.add(10, 1000)
    for _ in range(HISTORY_WINDOW):
        history.add(10, 30)
    assert history.predict(10) == 30


def test_a_size_class_counts_once_it_is_known_well_enough() -> None:
    history = History(0.5)
    for _ in range(100):
        history.add(1000, 500)
    for _ in range(HISTORY_MIN_CLASS - 1):
        history.add(10, 20)
    assert history.predict(12) == 500, "too few of its own: all count"
    history.add(10, 20)
    assert history.predict(12) == 20
    assert history.predict(900) == 500


def test_history_gives_the_quantile() -> None:
    history = History(0.9)
    for tokens in range(1, 101):
        history.add(5, tokens)
    assert history.predict(5) == pytest.approx(np.quantile(range(1, 101), 0.9))

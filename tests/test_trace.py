"""Traces prepared for vLLM's client: what is sent, and that simulator and client read the same."""

import json
from pathlib import Path

import pytest

from lab3.sim.jobs import Job
from lab3.sim.traces import read_trace
from lab3.trace import main

TRACE = "arrival_s,input_tokens,output_tokens\n10,100,30\n12,5,7\n20,8,200\n"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "t.csv"
    path.write_text(TRACE)
    return path


def prepare(trace: Path, *options: str, num_prompts: int = 10, longest: int = 1000) -> list[dict]:
    out = trace.with_name("out.jsonl")
    words = ["--num-prompts", str(num_prompts), "--longest", str(longest)]
    assert main([str(trace), "--out", str(out), *words, *options]) == 0
    return [json.loads(line) for line in out.read_text().splitlines()]


def test_requests_keep_their_lengths_and_times(trace: Path, capsys) -> None:
    rows = prepare(trace)
    assert [row["arrival_s"] for row in rows] == [0, 2, 10]
    assert [(row["input_tokens"], row["output_tokens"]) for row in rows] == [
        *((100, 30), (5, 7), (8, 200)),
    ]
    assert len({tuple(row["hash_ids"]) for row in rows}) == 3, "no two prompts are alike"
    assert capsys.readouterr().out == "3\n"


def test_long_requests_are_clipped_and_that_is_said(trace: Path, capsys) -> None:
    rows = prepare(trace, longest=60)
    assert all(row["input_tokens"] + row["output_tokens"] <= 60 for row in rows)
    assert "2 of 3 requests clipped to 60 tokens" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("rate", "times"), [("own", [0, 2, 10]), ("0.6", [0, 1, 5]), ("inf", [0, 0, 0])]
)
def test_the_pattern_of_the_arrivals_is_kept_at_another_rate(trace, rate, times) -> None:
    assert [row["arrival_s"] for row in prepare(trace, "--rate", rate)] == pytest.approx(times)


def test_a_trace_without_times_is_sent_as_the_bench_would(trace: Path) -> None:
    trace.write_text("input_tokens,output_tokens\n" + "5,5\n" * 50)
    rows = prepare(trace, "--rate", "10", "--seed", "3", num_prompts=50)
    assert rows[-1]["arrival_s"] == pytest.approx(5, rel=0.2)
    assert rows != prepare(trace, "--rate", "10", "--seed", "4", num_prompts=50)


def test_the_simulator_reads_the_file_that_was_sent(trace: Path) -> None:
    rows = prepare(trace, "--rate", "0.6")
    job = Job(trace=str(trace.with_name("out.jsonl")), num_prompts=3, kv_blocks=100)
    found = job.workload()
    assert found.arrival_s == pytest.approx([row["arrival_s"] for row in rows])
    assert list(found.output_tokens) == [row["output_tokens"] for row in rows]


@pytest.mark.parametrize("content", ["", "a,b\n1,2\n"])
def test_an_unusable_trace_is_one_line(trace: Path, capsys, content: str) -> None:
    trace.write_text(content)
    words = ["--out", str(trace.with_suffix(".jsonl")), "--num-prompts", "1", "--longest", "9"]
    assert main([str(trace), *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: t.csv")
    assert error.count("\n") == 1


def test_lines_that_are_no_json_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text("{]\n")
    with pytest.raises(ValueError, match=r"t\.jsonl is not a JSONL file"):
        read_trace(path)

"""Parts of a measurement that need no process: stalls, validity, progress, environment."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from lab3 import measure, run
from lab3.bench_file import read_bench, requests_frame
from lab3.measure import StallWatch, bench_problems, child_env
from lab3.progress import Progress
from lab3.server import RunError, SchedulerProof
from lab3.server_metrics import Sample

ASKED = {"input_tokens": 8, "output_tokens": 3, "num_prompts": 3}
BUSY = Sample(t_s=0.0, requests_running=2, requests_waiting=1, generation_tokens=10)


def bench_file(tmp_path: Path, **changes: object) -> Path:
    bench = {
        "errors": ["", "", ""],
        "ttfts": [0.1, 0.1, 0.1],
        "itls": [[0.01, 0.01]] * 3,
        "input_lens": [8, 8, 8],
        "output_lens": [3, 3, 3],
        "start_times": [1.0, 2.0, 3.0],
    }
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(bench | changes))
    return path


@pytest.mark.parametrize(
    ("changes", "problems"),
    [
        ({}, []),
        ({"errors": ["", "a\nlost", ""]}, ["1 of 3 requests failed (lost)"]),
        ({"ttfts": [0.1, 0.0, 0.1]}, ["1 of 3 requests failed (no error text)"]),
        ({"output_lens": [3, 2, 1]}, ["2 of 3 answers not 3 tokens long"]),
        (
            {"errors": ["", "lost", ""], "output_lens": [3, 1, 3]},
            ["1 of 3 requests failed (lost)"],
        ),
    ],
)
def test_validity_of_a_result(tmp_path: Path, changes: dict, problems: list[str]) -> None:
    path = bench_file(tmp_path, **changes)
    assert list(bench_problems(path, ASKED)) == problems
    # Both places must mean the same by success.
    failed = int((~requests_frame(read_bench(path)[-1])[0].ok).sum())
    assert bool(failed) == any("requests failed" in problem for problem in problems)


def test_lengths_that_were_not_asked_for_are_not_judged(tmp_path: Path) -> None:
    path = bench_file(tmp_path, output_lens=[3, 2, 1])
    assert list(bench_problems(path, dict.fromkeys(ASKED))) == []


def test_missing_requests_are_a_problem(tmp_path: Path) -> None:
    problems = list(bench_problems(bench_file(tmp_path), ASKED | {"num_prompts": 4}))
    assert problems == ["3 requests in the file, 4 asked"]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"errors": [""], "ttfts": []}'])
def test_a_file_that_is_no_result_is_a_problem(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bench.json"
    path.write_text(text)
    assert len(list(bench_problems(path, ASKED))) == 1


def test_a_busy_engine_without_a_token_stalls() -> None:
    watch = StallWatch(10.0)
    watch.look(BUSY, None)
    watch.look(replace(BUSY, t_s=10.0), None)
    with pytest.raises(
        RunError, match=r"no token for 10 s .* 2 requests running and 1 waiting"
    ) as e:
        watch.look(replace(BUSY, t_s=10.1), None)
    assert e.value.status == "timeout"


def test_a_token_or_an_idle_engine_is_no_stall() -> None:
    watch = StallWatch(10.0)
    watch.look(BUSY, None)
    watch.look(replace(BUSY, t_s=9.0, generation_tokens=11), None)
    watch.look(replace(BUSY, t_s=18.0, generation_tokens=11), None)
    idle = Sample(t_s=500.0, requests_running=0, requests_waiting=0, generation_tokens=11)
    watch.look(idle, None)
    watch.look(replace(BUSY, t_s=509.0, generation_tokens=11), None)


def test_a_server_that_answers_nothing_stalls(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = StallWatch(10.0)
    monkeypatch.setattr(measure.time, "monotonic", lambda: 100.0)
    watch.look(None, 95.0)
    watch.look(None, None)
    with pytest.raises(RunError, match="answered nothing for 10 s"):
        watch.look(None, 89.0)


def test_child_env_keeps_what_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "example.org,localhost")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv("PYTHONPATH", "/mine")
    monkeypatch.setenv("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "77")
    env = child_env()
    assert env["NO_PROXY"] == "example.org,localhost,127.0.0.1"
    assert env["no_proxy"] == "127.0.0.1,localhost"
    assert env["PYTHONPATH"].endswith(":/mine")
    assert env["VLLM_HTTP_TIMEOUT_KEEP_ALIVE"] == "77"
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "ERROR")
    assert child_env()["VLLM_LOGGING_LEVEL"] == "INFO"
    monkeypatch.delenv("VLLM_HTTP_TIMEOUT_KEEP_ALIVE")
    assert child_env()["VLLM_HTTP_TIMEOUT_KEEP_ALIVE"] == "120"


def job(tmp_path: Path, position: str) -> run.Job:
    words = f"{tmp_path} --task t --arm sjf --label SJF --timeout-s 1 --run-timeout-s 1"
    words += f" --repeats 1 2 3 --position {position}"
    words += " --serve vllm serve m --bench vllm bench serve --num-prompts 200 --request-rate 20"
    return run.parse(words.split())[0]


def test_progress_says_where_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(job(tmp_path, "2/4"))
    progress.starting_server([1, 2, 3])
    progress.server_ready(21.7, SchedulerProof("Scheduler", False))
    progress.starting_run([2, 3], 0)
    # First guess: 30 s a start, 200/20 + 15 s a run; three runs a call.
    assert capsys.readouterr().out.splitlines() == [
        f"[2/4] SJF: starting the server (port 8000), eta {_clock(3 * (30 + 75))}",
        "[2/4] SJF: ready after 22 s, runs vLLM's own scheduler (base Scheduler, sync)",
        f"[2/4] SJF: run 5/12, 200 requests at 20/s, eta {_clock(50 + 2 * (30 + 75))}",
    ]


def test_progress_learns_from_good_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for repeat, (status, wall_s) in enumerate([("ok", 10), ("ok", 20), ("timeout", 999)], start=1):
        folder = tmp_path / f"default-r{repeat}"
        folder.mkdir()
        content = {"status": status, "wall_s": wall_s, "server_start_s": 5}
        (folder / "run.json").write_text(json.dumps(content))
    Progress(job(tmp_path, "4/4")).starting_server([1, 2, 3])
    assert capsys.readouterr().out.endswith(f"eta {_clock(5 + 3 * 15)}\n")


def _clock(seconds: int) -> str:
    return f"{seconds // 60}:{seconds % 60:02d}"

"""A plan's process: progress, failures, killed processes, environment."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from lab3.task1 import launch, worker
from lab3.task1.batch_search import DoesNotFitError
from lab3.task1.job import FIXED, Job
from lab3.task1.progress import MARK, ProgressView, ReportingBar
from lab3.task1.vllm_record import kv_between

JOB = Job(
    plan="hf-serial",
    model="/no/such/model",
    dtype="float32",
    device="cpu",
    prompts=[[5, 6]],
    max_new_tokens=2,
    eos_token_ids=[2],
    pad_token_id=2,
    modes=[FIXED],
    max_batch=0,
    sorted_batch=1,
)


def test_a_plan_that_cannot_load_says_why_in_one_line(tmp_path: Path) -> None:
    found = launch.run_plan(JOB, tmp_path)
    assert found["status"] == "failed"
    assert "/no/such/model" in found["reason"]
    assert "\n" not in found["reason"]
    assert str(tmp_path / "hf-serial.log") in found["reason"]
    assert json.loads((tmp_path / "hf-serial.json").read_text()) == found
    assert found["setup"] == JOB.setup()


def test_a_killed_process_is_most_probably_out_of_memory() -> None:
    assert "memory ran out" in launch.how_it_ended(-9)
    assert "memory ran out" in launch.how_it_ended(137)
    assert "exit code 3" in launch.how_it_ended(3)


def test_an_older_result_is_not_taken_for_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hf-serial.json").write_text('{"status": "ok"}')
    # A worker that dies at once leaves no result.
    monkeypatch.setattr(launch, "worker_env", lambda *_: {"PYTHONPATH": "/nowhere"})
    monkeypatch.setattr(launch.sys, "executable", "/bin/false")
    found = launch.run_plan(JOB, tmp_path)
    assert found["status"] == "failed"
    assert "without a result" in found["reason"]


LOG = """
INFO 11-29 starting
(EngineCore pid=1) ERROR core.py:1 Traceback (most recent call last):
(EngineCore pid=1) ERROR core.py:1 torch.OutOfMemoryError: CUDA out of memory. Tried to allocate
(MainProcess) RuntimeError: Engine core initialization failed. See root cause above.
"""


def test_the_root_cause_is_found_in_the_engines_log() -> None:
    expected = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate"
    assert launch.root_cause(LOG) == expected
    assert launch.root_cause("all is well\n") == ""


def test_reasons_are_lines_a_person_can_act_on() -> None:
    assert worker.reason_of(ValueError("a\n  b")) == "a b"
    assert worker.reason_of(KeyError("x")) == "KeyError: 'x'"
    for full in (RuntimeError("CUDA out of memory"), DoesNotFitError("does not fit")):
        assert worker.reason_of(full).startswith("not enough memory")


def test_environment_of_a_plan(tmp_path: Path) -> None:
    given = {"VLLM_CPU_KVCACHE_SPACE": "9", "VLLM_CPU_OMP_THREADS_BIND": "auto"}
    env = launch.worker_env(replace(JOB, plan="vllm"), tmp_path, given)
    assert "VLLM_CPU_KVCACHE_SPACE" not in env, "it would overrule the size of the pool"
    cores = sorted(os.sched_getaffinity(0))
    assert env["VLLM_CPU_OMP_THREADS_BIND"] == ",".join(map(str, cores))
    assert env["LAB3_KV_FILE"] == str(tmp_path / "vllm.kv.json")
    on_gpu = launch.worker_env(replace(JOB, device="cuda"), tmp_path, given)
    assert on_gpu["VLLM_CPU_OMP_THREADS_BIND"] == "auto"


def test_progress_goes_through_the_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ReportingBar(10, "HF serial, fixed", "tok") as bar:
        bar.update(10)
    lines = capsys.readouterr().out
    assert lines.count(MARK) >= 2
    log = tmp_path / "log"
    log.write_text("noise of a library\n" + lines + MARK + '{"desc": "cut o')
    view = ProgressView(log)
    view.update()
    view.update()
    view.close()
    shown = capsys.readouterr().err
    assert "HF serial, fixed: 100%" in shown
    assert "10/10" in shown


def record(times: list[float]) -> dict:
    n = len(times)
    return {
        "t_s": times,
        "tokens": [9, 20, 30, 5][:n],
        "blocks": [1, 2, 3, 1][:n],
        "running": [1] * n,
    }


def test_only_the_steps_of_the_pass_count() -> None:
    found = kv_between(record([1.0, 2.0, 3.0, 4.0]), 1.5, 3.5)
    assert found == {
        "peak_tokens": 30,
        "peak_blocks": 3,
        "series": [[0.5, 20, 2, 1], [1.5, 30, 3, 1]],
    }
    with pytest.raises(ValueError, match="no step of this pass"):
        kv_between(record([1.0]), 5, 6)

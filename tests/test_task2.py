"""task2.sh from outside: its commands, a sweep with stubs, and a small one on a real server."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from script_sandbox import environment_of, sandbox_of
from test_processes import ROOT, STUB
from test_refusal import BELOW_SEATS
from test_server import free_port
from test_table import cells

from lab3 import profile

TITLE = "Task 2: max_num_batched_tokens (X)"
BUDGET, SEATS = "--max-num-batched-tokens", "--max-num-seqs"

# Refuses X = 16 in vLLM's words and breaks at X = 130; otherwise the stub.
VLLM = f"""#!/usr/bin/env bash
case " $* " in
*" {BUDGET} 16 "*) printf '%s' {shlex.quote(BELOW_SEATS)} >&2; exit 1 ;;
*" {BUDGET} 130 "*) echo "RuntimeError: out of luck" >&2; exit 1 ;;
esac
exec {sys.executable} {STUB} "$1" "${{@:3}}"
"""


@pytest.fixture
def sandbox(tmp_path):
    """The script beside its profiles, without a .venv, and a `vllm` that is a stub."""
    return sandbox_of("task2.sh", tmp_path, VLLM)


def environment(root: Path, **values: str) -> dict[str, str]:
    small = {
        "TASK2_INPUT_LEN": "8",
        "TASK2_OUTPUT_LEN": "4",
        "TASK2_NUM_PROMPTS": "20",
        "TASK2_REPEATS": "2",
        "MAX_NUM_SEQS": "64",
        "TASK2_REQUEST_RATE": "16",
    }
    return environment_of(root, **small | values)


def task2(root: Path, **values: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        ["bash", str(root / "task2.sh")],
        env=environment(root, **values),
        capture_output=True,
        text=True,
    )


def table(root: Path, name: str = "task2-cpu") -> dict[str, list[str]]:
    return cells((root / f"runs/{name}/table.md").read_text(), TITLE)


# -- commands --


def commands(root: Path, **values: str) -> list[list[str]]:
    done = task2(root, DRY_RUN="1", **values)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if not line.startswith("#")]
    return [shlex.split(line) for line in lines]


def value(words: list[str], name: str) -> str:
    assert words.count(name) == 1
    return words[words.index(name) + 1]


def test_dry_run_prints_a_server_and_a_bench_for_each_x_and_runs_nothing(sandbox):
    printed = commands(sandbox, TASK2_BUDGETS="64 512", TASK2_REQUEST_RATE="inf")
    assert [words[:3] for words in printed] == [
        ["vllm", "serve", "models/stub"],
        ["vllm", "bench", "serve"],
    ] * 2
    assert [value(words, BUDGET) for words in printed[::2]] == ["64", "512"]
    assert all("--no-enable-prefix-caching" in words for words in printed[::2])
    assert all("--scheduler-cls" not in words for words in printed[::2])
    for words in printed[1::2]:
        assert value(words, "--request-rate") == "inf"
        assert value(words, "--num-prompts") == "20"
        assert value(words, "--seed") == "42"
    assert value(printed[3], "--result-dir") == str(sandbox / "runs/task2-cpu/default-x512-r1")
    assert not (sandbox / "runs").exists()


def test_the_gpu_profile_is_the_labs_own_sweep(sandbox):
    printed = commands(sandbox, PROFILE="gpu", MODEL="Qwen/Qwen3-0.6B", MAX_NUM_SEQS="256")
    budgets = [value(words, BUDGET) for words in printed[::2]]
    assert budgets == ["512", "1024", "2048", "4096", "8192"]
    assert value(printed[0], "--gpu-memory-utilization") == "0.9"
    assert value(printed[0], SEATS) == "256"
    assert value(printed[1], "--request-rate") == "16"


def test_another_scheduler_gets_settings_record_and_folders_of_its_own(sandbox):
    cls = "my_scheduler.SJFScheduler"
    serve, bench = commands(
        sandbox,
        TASK2_BUDGETS="64",
        SCHEDULER_CLS=cls,
        SCHEDULER_SETTINGS='{"aging_tokens_per_s": 5}',
    )
    assert value(serve, "--scheduler-cls") == cls
    runs = sandbox / "runs/task2-cpu-SJFScheduler"
    assert json.loads(value(serve, "--additional-config")) == {
        "lab3": {
            "record": str(runs / "servers/SJFScheduler-x64.steps.jsonl"),
            "aging_tokens_per_s": 5,
        }
    }
    assert value(bench, "--result-dir") == str(runs / "SJFScheduler-x64-r1")


@pytest.mark.parametrize(
    ("budgets", "message"),
    [(" ", "TASK2_BUDGETS is empty"), ("64,512", "must be a number, not '64,512'")],
)
def test_nonsense_is_one_clear_line(sandbox, budgets, message):
    done = task2(sandbox, TASK2_BUDGETS=budgets)
    assert done.returncode == 2
    assert message in done.stderr.splitlines()[-1]


# -- a sweep with stubs --


def test_a_refused_x_stands_in_the_table_and_fails_nothing(sandbox):
    done = task2(sandbox, TASK2_BUDGETS="16 64 512")
    assert done.returncode == 0, done.stdout + done.stderr
    reason = "max_num_batched_tokens (16) must be greater than or equal to max_num_seqs (64)."
    assert f"default-x16-r1 refused: {reason}" in done.stdout
    assert "Traceback" not in done.stdout
    run = json.loads((sandbox / "runs/task2-cpu/default-x16-r1/run.json").read_text())
    assert (run["status"], run["reason"]) == ("refused", reason)
    assert not (sandbox / "runs/task2-cpu/default-x16-r2").exists()

    rows = table(sandbox)
    assert list(rows) == ["64", "512", "16 (refused)"]
    assert set(rows["16 (refused)"]) == {"–"}
    assert f"default-x16-r1, refused: {reason}" in (
        (sandbox / "runs/task2-cpu/table.md").read_text()
    )
    for name in ("a1_latency", "a2_throughput"):
        assert (sandbox / f"runs/task2-cpu/{name}.png").stat().st_size > 10_000


def test_kv_and_preemptions_come_from_the_server_or_are_not_found(sandbox):
    task2(sandbox, TASK2_BUDGETS="64 512")
    header = (sandbox / "runs/task2-cpu/table.md").read_text().splitlines()[2]
    names = [name.strip() for name in header.strip("|").split("|")][1:]
    row = dict(zip(names, table(sandbox)["64"], strict=True))
    # The stub's pool has 100 usable blocks of 16 tokens, a quarter of them in use.
    assert row["peak KV (tokens)"] == "400"
    assert row["preempted (times)"] == "0"
    assert row["peak KV (MiB)"] == "not found"  # The stub's log names no model.


def test_a_second_call_makes_nothing_and_gives_the_same_table(sandbox):
    values = {"TASK2_BUDGETS": "16 64 512", "PORT": str(free_port())}
    task2(sandbox, **values)
    first = (sandbox / "runs/task2-cpu/table.md").read_bytes()
    again = task2(sandbox, **values)
    assert again.returncode == 0
    assert "starting the server" not in again.stdout
    assert "default-x16-r1: refused before, skipped" in again.stdout
    assert again.stdout.count("finished before, skipped") == 4
    assert (sandbox / "runs/task2-cpu/table.md").read_bytes() == first

    # With fewer seats the refused one is worth another try.
    tried = task2(sandbox, TASK2_BUDGETS="16", MAX_NUM_SEQS="8")
    assert "default-x16-r1: made again, changed: --max-num-seqs 64 -> 8" in tried.stdout


def test_an_x_that_breaks_fails_the_sweep_and_the_others_go_on(sandbox):
    done = task2(sandbox, TASK2_BUDGETS="130 512", TASK2_REPEATS="1")
    assert done.returncode == 1
    assert "RuntimeError: out of luck" in done.stdout
    assert list(table(sandbox)) == ["512", "130 (failed)"]
    assert "NOT COMPLETE: default-x130-r1: failed" in done.stdout


def test_a_sweep_of_refusals_only_is_a_failure_with_the_reasons(sandbox):
    done = task2(sandbox, TASK2_BUDGETS="16", TASK2_REPEATS="1")
    assert done.returncode == 1
    assert "refused: max_num_batched_tokens (16) must be" in done.stderr
    assert "no run to table" in done.stderr


def test_points_under_different_loads_are_not_passed_off_as_one_sweep(sandbox):
    task2(sandbox, TASK2_BUDGETS="64 512", TASK2_REPEATS="1", TASK2_REQUEST_RATE="16")
    done = task2(sandbox, TASK2_BUDGETS="512", TASK2_REPEATS="1", TASK2_REQUEST_RATE="32")
    assert done.returncode == 1
    assert "NOT COMPLETE: the points differ in request_rate (16.0, 32.0)" in done.stdout


def test_goals_reach_the_recommendation(sandbox):
    task2(sandbox, TASK2_BUDGETS="64 512")
    own = profile.load("cpu", {"PATH": os.environ["PATH"]})
    goals = f"TTFT <= {own['TTFT_SLO_MS']} ms and ITL P99 <= {own['ITL_SLO_MS']} ms"
    assert goals in (sandbox / "runs/task2-cpu/table.md").read_text()

    values = {"TASK2_BUDGETS": "64 512", "TTFT_SLO_MS": "100", "ITL_SLO_MS": "30"}
    done = task2(sandbox, **values)
    assert "(TTFT <= 100 ms and ITL P99 <= 30 ms" in done.stdout.replace("\n  ", " ")
    header = (sandbox / "runs/task2-cpu/table.md").read_text().splitlines()[2]
    assert "goodput (req/s)" in header


# -- on a real server --


@pytest.mark.live
@pytest.mark.timeout(900)
def test_a_small_sweep_on_a_real_server(tmp_path):
    runs, out = tmp_path / "runs", tmp_path / "results"
    done = task2(
        ROOT,
        **{"PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])},
        MODEL="local:micro",
        RUN_DIR=str(runs),
        OUT=str(out),
        TASK2_BUDGETS="4 16 256",
        TASK2_REPEATS="1",
        TASK2_NUM_PROMPTS="60",
        TASK2_REQUEST_RATE="inf",
        NUM_WARMUPS="0",
        DTYPE="float32",
        MAX_NUM_SEQS="8",
        TASK2_INPUT_LEN="64",
        TASK2_OUTPUT_LEN="96",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 (refused)" in cells((out / "table.md").read_text(), TITLE)
    summary = pd.read_csv(out / "summary.csv")
    assert list(summary.repeats) == [1, 1]
    assert (summary.preemptions == 0).all()
    # 8 seats of 64 to 160 tokens, in blocks of 32; the peak is what one look a second saw.
    assert summary.kv_peak_tokens.between(64, 8 * 160).all()
    # micro: 2 layers, 1 KV head of 32, 4 bytes.
    assert summary.kv_peak_mib.to_numpy() == pytest.approx(
        summary.kv_peak_tokens.to_numpy() * 2 * 2 * 1 * 32 * 4 / 2**20
    )
    assert {path.name for path in out.glob("*.png")} == {"a1_latency.png", "a2_throughput.png"}

"""The GPU profile's commands, which cannot run here, pass vLLM's own parsers and config checks."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from lab3 import profile

REPOSITORY = Path(__file__).resolve().parent.parent
ALL_ARMS = "default passthrough prefill_first sjf decode_first fair_share adaptive dla dla_srpt"
SCRIPTS = {"task2": {}, "task3": {"ARMS": ALL_ARMS}}
LAB = profile.load("gpu", {"PATH": os.environ["PATH"]})
WRONG_SERVERS = {
    "--max-num-batched-tokens 128 --max-num-seqs 256": "max_num_batched_tokens",
    "--max-num-batched-tokns 2048": "unrecognized",
    "--scheduler-cls my_scheduler.NoSuchScheduler": "NoSuchScheduler",
    "--max-model-len 100000000": "max_model_len",
}
WRONG_BENCHES = {"--random-input-length 5": "unrecognized", "--seed x": "invalid int"}


def dry_run(script: str, **variables: str) -> list[list[str]]:
    """The vLLM commands that a script would run under the GPU profile."""
    env = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": os.environ.get("HOME", "/"),
        "DRY_RUN": "1",
        "PROFILE": "gpu",
        "LAB3_SKIP_SETUP": "1",
    }
    result = subprocess.run(
        ["bash", script], cwd=REPOSITORY, env=env | variables, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    lines = [line for line in result.stdout.splitlines() if not line.startswith("#")]
    commands = [shlex.split(line) for line in lines]
    assert all(command[0] == "vllm" for command in commands), lines
    return commands


def vllm_on_a_gpu(commands: list[list[str]]) -> list[dict]:
    """What vLLM on an H100 makes of commands of one kind; see gpu_config.py."""
    result = subprocess.run(
        [sys.executable, "tests/gpu_config.py"],
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        input=json.dumps(commands),
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    return json.loads(result.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def answers() -> dict[tuple[str, str], list[dict]]:
    """vLLM's answers by (task, "serve" or "bench"); two processes, whose start is what takes time.

    The task "wrong" holds commands that must be refused.
    """
    asked = [("wrong", ["vllm", "serve", "m", *shlex.split(words)]) for words in WRONG_SERVERS]
    asked += [("wrong", ["vllm", "bench", "serve", *words.split()]) for words in WRONG_BENCHES]
    for task, variables in SCRIPTS.items():
        asked += [(task, command) for command in dry_run(f"{task}.sh", **variables)]
    found: dict[tuple[str, str], list[dict]] = {}
    for kind in ("serve", "bench"):
        of_kind = [(task, command) for task, command in asked if command[1] == kind]
        results = vllm_on_a_gpu([command for _, command in of_kind])
        for (task, _), result in zip(of_kind, results, strict=True):
            found.setdefault((task, kind), []).append(result)
    return found


def accepted(found: list[dict]) -> list[dict]:
    """The answers, none of which may be a refusal."""
    assert [answer["error"] for answer in found if "error" in answer] == []
    return found


def test_wrong_commands_are_refused_here(answers) -> None:
    refusals = answers["wrong", "serve"] + answers["wrong", "bench"]
    reasons = [*WRONG_SERVERS.values(), *WRONG_BENCHES.values()]
    for reason, refusal in zip(reasons, refusals, strict=True):
        assert re.search(reason, refusal.get("error", "accepted"))


@pytest.mark.parametrize("task", SCRIPTS)
def test_servers_get_the_labs_numbers_and_run_async(answers, task: str) -> None:
    for server in accepted(answers[task, "serve"]):
        assert server["model"] == "Qwen/Qwen3-0.6B"
        assert server["host"] == "127.0.0.1"
        assert server["port"] == int(LAB["PORT"])
        assert server["max_num_seqs"] == 256
        assert server["gpu_memory_utilization"] == 0.9
        assert server["max_model_len"] == int(LAB["MAX_MODEL_LEN"])
        assert server["enable_prefix_caching"] is False
        assert server["async_scheduling"] is True
        assert "AsyncScheduler" in server["bases"]


def test_task2_sweeps_the_budget(answers) -> None:
    budgets = [s["max_num_batched_tokens"] for s in accepted(answers["task2", "serve"])]
    assert budgets == [512, 1024, 2048, 4096, 8192]
    assert {b["request_rate"] for b in accepted(answers["task2", "bench"])} == {16}


def test_task3_runs_every_policy_at_one_budget(answers) -> None:
    servers = accepted(answers["task3", "serve"])
    assert {s["max_num_batched_tokens"] for s in servers} == {2048}
    assert len({s["scheduler"] for s in servers}) == len(ALL_ARMS.split())
    assert servers[0]["scheduler"] == "vllm.v1.core.sched.async_scheduler.AsyncScheduler"
    assert all("LabScheduler" in s["bases"] for s in servers[1:])
    assert {b["request_rate"] for b in accepted(answers["task3", "bench"])} == {8}


@pytest.mark.parametrize("task", SCRIPTS)
def test_benches_ask_for_the_labs_load(answers, task: str) -> None:
    benches = accepted(answers[task, "bench"])
    assert len(benches) == len(answers[task, "serve"])
    for bench in benches:
        assert bench["dataset_name"] == "random"
        assert bench["model"] == "Qwen/Qwen3-0.6B"
        assert bench["port"] == int(LAB["PORT"])
        assert (bench["random_input_len"], bench["random_output_len"]) == (1024, 256)
        assert (bench["num_prompts"], bench["seed"]) == (1000, 42)
        assert bench["save_result"] is True
        assert bench["save_detailed"] is True


def test_a_prompt_and_its_answer_fit_the_model_length() -> None:
    assert int(LAB["INPUT_LEN"]) + int(LAB["OUTPUT_LEN"]) <= int(LAB["MAX_MODEL_LEN"])

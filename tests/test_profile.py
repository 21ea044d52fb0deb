"""Profiles: readable from Python and shell alike, overridable, complete."""

import os
import subprocess
from pathlib import Path

import pytest

from lab3 import local_model, profile

REPOSITORY = Path(__file__).resolve().parent.parent
BARE = {"PATH": os.environ["PATH"]}
# What the scripts read; a device's own keys come on top.
NUMBERS = """
    MAX_MODEL_LEN MAX_NUM_SEQS MAX_NUM_BATCHED_TOKENS PORT INPUT_LEN OUTPUT_LEN NUM_PROMPTS SEED
    NUM_WARMUPS REPEATS RUN_TIMEOUT_S START_TIMEOUT_S TASK1_NUM_PROMPTS TASK1_MIN_INPUT_LEN
    TASK1_MAX_INPUT_LEN TASK1_OUTPUT_LEN TASK2_NUM_PROMPTS TASK2_REPEATS
    TASK2_INPUT_LEN TASK2_OUTPUT_LEN
"""


def shell(script: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", script],
        cwd=REPOSITORY,
        env=BARE | {"LAB3_SKIP_SETUP": "1", "DRY_RUN": "1"} | env,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("name", profile.available())
def test_every_profile_has_every_key_and_fits_itself(name: str) -> None:
    values = profile.load(name, BARE)
    assert values.keys() >= profile.load("gpu", BARE).keys() - {"GPU_MEMORY_UTILIZATION"}
    number = {key: int(values[key]) for key in NUMBERS.split()}
    assert number["INPUT_LEN"] + number["OUTPUT_LEN"] <= number["MAX_MODEL_LEN"]
    assert number["TASK2_INPUT_LEN"] + number["TASK2_OUTPUT_LEN"] <= number["MAX_MODEL_LEN"]
    assert number["TASK1_MAX_INPUT_LEN"] + number["TASK1_OUTPUT_LEN"] <= number["MAX_MODEL_LEN"]
    # vLLM refuses a budget below the number of seats.
    budgets = [int(x) for x in values["TASK2_BUDGETS"].split()]
    assert min([*budgets, number["MAX_NUM_BATCHED_TOKENS"]]) >= number["MAX_NUM_SEQS"]
    assert budgets == sorted(set(budgets))
    for rate in (values["REQUEST_RATE"], values["TASK2_REQUEST_RATE"]):
        assert float(rate.removeprefix("auto:")) > 0
    assert 0 < float(values["TIMEOUT_S"]) < number["RUN_TIMEOUT_S"]
    model = values["MODEL"]
    assert model.removeprefix("local:") in local_model.SHAPES or not model.startswith("local:")


def test_the_lab_profile_is_the_labs_own() -> None:
    values = profile.load("gpu", BARE)
    assert values["MODEL"] == "Qwen/Qwen3-0.6B"
    assert values["TASK2_BUDGETS"] == "512 1024 2048 4096 8192"
    assert (values["REQUEST_RATE"], values["TASK2_REQUEST_RATE"]) == ("8", "16")
    assert (values["TASK2_INPUT_LEN"], values["TASK2_OUTPUT_LEN"]) == ("1024", "256")


def test_the_full_profile_keeps_the_labs_load() -> None:
    lab, full = profile.load("gpu", BARE), profile.load("cpu-full", BARE)
    for key in ("INPUT_LEN", "OUTPUT_LEN", "NUM_PROMPTS", "MAX_NUM_SEQS", "MAX_NUM_BATCHED_TOKENS"):
        assert full[key] == lab[key], key


def test_the_environment_wins_and_dependent_values_follow() -> None:
    values = profile.load("gpu", BARE | {"NUM_PROMPTS": "7", "GPU_MEMORY_UTILIZATION": "0.5"})
    assert values["NUM_PROMPTS"] == values["TASK2_NUM_PROMPTS"] == "7"
    assert values["DEVICE_ARGS"] == "--gpu-memory-utilization 0.5"


def test_values_with_spaces_and_line_breaks_survive() -> None:
    odd = "a 'b' \"c\" $d\n=e"
    assert profile.load("cpu", BARE | {"SERVE_ARGS": odd})["SERVE_ARGS"] == odd


def test_the_profile_follows_the_device_unless_named() -> None:
    assert profile.load(env=BARE | {"LAB3_DEVICE": "gpu"})["PROFILE"] == "gpu"
    assert profile.load(env=BARE | {"LAB3_DEVICE": "cpu"})["PROFILE"] == "cpu"
    named = BARE | {"LAB3_DEVICE": "gpu", "PROFILE": "cpu-full"}
    assert profile.load(env=named)["PROFILE"] == "cpu-full"


def test_a_driver_without_a_gpu_is_no_gpu(tmp_path: Path) -> None:
    smi = tmp_path / "nvidia-smi"
    for answer, device in (
        ("", "cpu"),
        ("No devices found.", "cpu"),
        ("GPU 0: NVIDIA H100", "gpu"),
    ):
        smi.write_text(f"#!/bin/sh\necho '{answer}'\n")
        smi.chmod(0o755)
        assert profile.device({"PATH": f"{tmp_path}:{BARE['PATH']}"}) == device


def test_wrong_names_are_one_line() -> None:
    with pytest.raises(profile.ProfileError, match=r"^no profile 'x': .* cpu, cpu-full, gpu$"):
        profile.load("x", BARE)
    with pytest.raises(profile.ProfileError, match=r"LAB3_DEVICE is 'tpu': set it to cpu or gpu"):
        profile.load(env=BARE | {"LAB3_DEVICE": "tpu"})
    with pytest.raises(profile.ProfileError, match="no profile"):
        profile.load("../profiles/cpu", BARE)


def test_common_sh_agrees_with_python() -> None:
    result = shell("source scripts/common.sh; env -0", PROFILE="cpu-full", NUM_PROMPTS="7")
    env = dict(entry.split("=", 1) for entry in result.stdout.split("\0") if entry)
    values = profile.load("cpu-full", BARE | {"NUM_PROMPTS": "7"})
    assert values.pop("MODEL") == "local:m2"
    assert env["MODEL"] == "models/m2"
    assert {key: env[key] for key in values} == values
    assert result.stderr == f"profile cpu-full: {values['PROFILE_NOTE']}\n"
    assert env["NO_PROXY"] == env["no_proxy"] == "127.0.0.1,localhost"
    assert env["PYTHONPATH"].split(":")[0] == str(REPOSITORY)
    assert env["HF_HUB_OFFLINE"] == "1"


def test_common_sh_works_from_any_folder_and_keeps_proxy_exceptions() -> None:
    script = f"cd /; source {REPOSITORY}/scripts/common.sh; echo $PWD $NO_PROXY"
    result = shell(script, NO_PROXY="example.org", PROFILE="gpu")
    assert result.stdout == f"{REPOSITORY} 127.0.0.1,localhost,example.org\n"


def test_common_sh_refuses_an_unknown_profile_in_one_line() -> None:
    result = shell("source scripts/common.sh; echo reached", PROFILE="nope")
    assert (result.returncode, result.stdout) == (2, "")
    first, _, known = result.stderr.partition(" to one of: ")
    assert first == "error: no profile 'nope': set PROFILE"
    assert sorted(known.split()) == profile.available()

"""The command line of Task 1: defaults, overrides, one clear line for what is wrong."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import task1_vllm_vs_hf as task1
from lab3 import local_model
from lab3.task1 import compare
from lab3.task1.job import EOS, PLANS
from lab3.task1.kv_bytes import kv_bytes_per_token
from lab3.task1.model import eos_token_ids, find_model

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = str(ROOT / "task1_vllm_vs_hf.py")


@pytest.fixture(autouse=True)
def _on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROFILE", "cpu")
    monkeypatch.setenv("LAB3_DEVICE", "cpu")


def settings(*argv: str) -> compare.Settings:
    return compare.settings_from(task1.parse_args(list(argv)))


def test_defaults_are_the_labs() -> None:
    found = settings()
    assert (found.num_prompts, found.input_lens, found.max_new_tokens) == (64, (128, 512), 128)
    assert found.plans == tuple(PLANS) == task1.PLAN_NAMES
    assert found.out == Path("runs/task1-cpu")
    assert found.device == "cpu"


def test_the_real_model_belongs_to_the_full_profile_and_the_labs_to_the_gpu() -> None:
    assert settings("--profile", "cpu-full").model == "smollm2"
    assert settings("--profile", "gpu").model == "Qwen/Qwen3-0.6B"
    assert settings().model == "local:tiny"


def test_the_command_line_wins() -> None:
    found = settings(
        *("--model", "smollm2", "--num-prompts", "9", "--max-new-tokens", "7"),
        *("--plans", "vllm, hf-serial", "--stop-at-eos", "--dtype", "float32"),
    )
    assert (found.model, found.num_prompts, found.max_new_tokens) == ("smollm2", 9, 7)
    assert found.plans == ("hf-serial", "vllm")
    assert (found.mode, found.dtype, found.sorted_batch) == (EOS, "float32", 3)
    assert found.out == Path("runs/task1-cpu-smollm2-eos")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--plans", "vllm,vlm"], "unknown plan 'vlm': --plans takes hf-serial,"),
        (["--plans", ","], "no plan given"),
        (["--num-prompts", "0"], "must be 1 or more"),
        (["--min-input-len", "600"], "is above"),
        (["--profile", "tpu"], "no profile 'tpu'"),
        (["--model", "local:huge"], "no local model 'huge'"),
        (["--model", "no/such-model"], "no model 'no/such-model'"),
        (["--report-only", "--out", "/no/results"], "no results of Task 1"),
        (["--dtype", "int3"], "dtype 'int3'"),
        (["--max-new-tokens", "4000"], "lower --max-input-len or --max-new-tokens"),
        (["--sharegpt", "/no/file.json"], "cannot read /no/file.json"),
    ],
)
def test_what_is_wrong_is_one_line(
    argv: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    out = [] if "--out" in argv else ["--out", str(tmp_path)]
    model = [] if "--model" in argv else ["--model", "local:micro"]
    monkeypatch.setattr(sys, "argv", [SCRIPT, *model, *argv, *out])
    assert task1.main() == 2
    error = capsys.readouterr().err.strip()
    assert message in error
    assert error.startswith("error: ")
    assert "\n" not in error


def test_help_runs_on_a_bare_python() -> None:
    done = subprocess.run(
        [sys.executable, "-S", "-I", SCRIPT, "--help"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "--stop-at-eos" in done.stdout


def bare_python(tmp_path: Path, *argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    """The script, alone in a folder, with a Python that has no packages."""
    copy = tmp_path / "task1_vllm_vs_hf.py"
    copy.write_text(Path(SCRIPT).read_text())
    return subprocess.run(
        [sys.executable, "-S", str(copy), *argv],
        env={"PATH": os.environ["PATH"]} | env,
        capture_output=True,
        text=True,
    )


def test_a_python_without_vllm_goes_on_in_the_labs_own(tmp_path: Path) -> None:
    (tmp_path / "setup.sh").write_text("echo making it; mkdir -p .venv\n")
    lab_python = tmp_path / ".venv" / "bin" / "python"
    lab_python.parent.mkdir(parents=True)
    lab_python.write_text('#!/bin/sh\necho "lab python: $*"\n')
    lab_python.chmod(0o755)
    done = bare_python(tmp_path, "--num-prompts", "3")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"lab python: {tmp_path}/task1_vllm_vs_hf.py --num-prompts 3\n"
    assert "making it" in done.stderr


def test_without_set_up_it_says_what_to_run(tmp_path: Path) -> None:
    done = bare_python(tmp_path, LAB3_SKIP_SETUP="1")
    assert done.returncode == 1
    assert done.stderr.strip().endswith("run 'bash setup.sh'")
    (tmp_path / "setup.sh").write_text("echo no Python 3.11 >&2; exit 3\n")
    done = bare_python(tmp_path)
    assert done.returncode == 1
    assert "setup.sh failed" in done.stderr


def test_the_pool_holds_every_request_and_no_more_than_a_block_each(tmp_path: Path) -> None:
    folder = local_model.build("micro", models_dir=tmp_path)
    model = find_model(str(folder), "float32")
    per_token = kv_bytes_per_token(model.config, model.dtype)
    prompts = [[5] * 100, [5] * 33]
    args = compare.engine_args(settings("--max-new-tokens", "28"), prompts, per_token)
    blocks = args["kv_cache_memory_bytes"] / (per_token * args["block_size"])
    assert blocks == 2 + 4 + 2


def test_both_engines_are_told_the_same_end(tmp_path: Path) -> None:
    folder = local_model.build("micro", models_dir=tmp_path)
    model = find_model(str(folder), "auto")
    assert model.dtype == "bfloat16"
    assert model.eos_token_ids == [model.tokenizer.eos_token_id]
    path = folder / "generation_config.json"
    path.write_text('{"eos_token_id": [7, 2]}')
    assert eos_token_ids(str(folder), model.config, model.tokenizer) == [7, 2]
    path.unlink()
    assert eos_token_ids(str(folder), model.config, model.tokenizer) == model.eos_token_ids

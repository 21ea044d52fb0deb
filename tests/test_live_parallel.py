"""Tensor and data parallelism through the scripts: one machine, two cores for two devices."""

import json
import re
import subprocess
from pathlib import Path

import pytest
from test_processes import ROOT
from test_server import free_port
from test_task3 import environment
from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.utils.argparse_utils import FlexibleArgumentParser

from lab3.results import load_run

NUM_PROMPTS, INPUT_LEN, OUTPUT_LEN = 10, 64, 16


@pytest.mark.live
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("option", "threads", "num_engines"),
    [
        # With "auto" vLLM wants a NUMA node for each worker: "Not enough allowed NUMA nodes".
        ("--tensor-parallel-size 2", "0|1", 1),
        ("--data-parallel-size 2", "auto", 2),
    ],
    ids=["TP", "DP"],
)
def test_task3_on_two_devices(
    option: str, threads: str, num_engines: int, micro_model: Path, tmp_path: Path
) -> None:
    """Verifies that a measurement with SERVE_ARGS for two devices

    1. ends well, with a valid run whose answers are as long as asked,
    2. has a step record of each engine, and together they hold every token,
    3. ends in a table that names the arm.
    """
    env = environment(
        ROOT,
        **{"ARMS": "sjf", "RUN_DIR": str(tmp_path), "PORT": str(free_port())},
        **{"MODEL": str(micro_model), "SERVE_ARGS": option, "START_TIMEOUT_S": "400"},
        **{"VLLM_CPU_OMP_THREADS_BIND": threads, "VLLM_CPU_KVCACHE_SPACE": "1"},
        **{"NUM_PROMPTS": str(NUM_PROMPTS), "REQUEST_RATE": "4", "NUM_WARMUPS": "0"},
        **{"INPUT_LEN": str(INPUT_LEN), "OUTPUT_LEN": str(OUTPUT_LEN)},
    )
    done = subprocess.run(
        ["bash", str(ROOT / "task3.sh")], env=env, capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr

    run = load_run(tmp_path / "sjf-r1")
    assert run.valid, run.problems
    assert run.requests.output_tokens.tolist() == [OUTPUT_LEN] * NUM_PROMPTS
    assert run.steps.engine.nunique() == num_engines
    assert run.steps.prefill_tokens.sum() == NUM_PROMPTS * INPUT_LEN
    assert run.steps.decode_tokens.sum() == NUM_PROMPTS * (OUTPUT_LEN - 1)
    assert option in " ".join(json.loads((tmp_path / "sjf-r1/run.json").read_text())["serve_cmd"])
    assert "| B1: SJF |" in (tmp_path / "table.md").read_text()


def test_vllm_parses_the_readmes_commands_for_several_machines() -> None:
    """Nothing here has several machines; vLLM's own parser and checks take every command."""
    text = (ROOT / "README.md").read_text()
    (block,) = (b for b in re.findall(r"```bash\n(.*?)```", text, re.DOTALL) if "--headless" in b)
    said = subprocess.run(
        ["bash", "-euc", f'vllm() {{ echo "$@"; }}\n{block}'], capture_output=True, text=True
    )
    commands = [line.split() for line in said.stdout.splitlines()]
    assert [words[0] for words in commands] == ["serve"] * 4, said.stderr
    for words in commands:
        args = make_arg_parser(FlexibleArgumentParser()).parse_args(words[1:])
        validate_parsed_serve_args(args)
        assert args.scheduler_cls == "my_scheduler.SJFScheduler"
        assert args.data_parallel_size == 4 or (args.nnodes, args.tensor_parallel_size) == (2, 16)
    assert [words.count("--headless") for words in commands] == [0, 1, 0, 1]

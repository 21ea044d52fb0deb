"""task3.sh from outside: the commands it makes, what vLLM thinks of them, and how it ends."""

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from script_sandbox import environment_of, sandbox_of
from test_processes import ROOT, STUB, wait_until, with_marker
from test_server import free_port

PROFILES = [path.stem for path in sorted((ROOT / "profiles").glob("*.env"))]
CLASSES = {
    "passthrough": "my_scheduler.PassthroughScheduler",
    "prefill_first": "my_scheduler.StepExclusivePrefillFirstScheduler",
    "sjf": "my_scheduler.SJFScheduler",
}


@pytest.fixture
def sandbox(tmp_path: Path) -> Path:
    """The script beside its profiles, without a .venv, and a `vllm` that is a stub."""
    # `vllm serve MODEL ...` and `vllm bench serve ...`: the stub reads options only.
    vllm = f'#!/bin/sh\nexec {sys.executable} {STUB} "$@" --marker {tmp_path} $STUB_ARGS\n'
    return sandbox_of("task3.sh", tmp_path, vllm)


def environment(root: Path, **values: str) -> dict[str, str]:
    small = {
        **{"INPUT_LEN": "8", "OUTPUT_LEN": "4", "NUM_PROMPTS": "20"},
        **{"REPEATS": "1", "REQUEST_RATE": "100"},
    }
    return environment_of(root, **small | values)


def task3(root: Path, **values: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        ["bash", str(root / "task3.sh")],
        env=environment(root, **values),
        capture_output=True,
        text=True,
    )


def commands(root: Path, **values: str) -> list[list[str]]:
    """What DRY_RUN=1 prints: a server and a bench for each arm and round."""
    done = task3(root, DRY_RUN="1", **values)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if not line.startswith("#")]
    return [shlex.split(line) for line in lines]


def value(words: list[str], name: str) -> str:
    assert words.count(name) == 1
    return words[words.index(name) + 1]


# -- commands --


def test_dry_run_prints_each_arms_commands_and_runs_nothing(sandbox: Path) -> None:
    printed = commands(sandbox)
    assert [words[:2] for words in printed] == [["vllm", "serve"], ["vllm", "bench"]] * 4
    default, *others = printed[::2]
    assert "--scheduler-cls" not in default
    assert "--additional-config" not in default
    assert [value(words, "--scheduler-cls") for words in others] == list(CLASSES.values())
    for arm, words in zip(CLASSES, others, strict=True):
        record = str(sandbox / f"runs/task3-cpu/servers/{arm}.steps.jsonl")
        assert json.loads(value(words, "--additional-config")) == {"lab3": {"record": record}}
        # Nothing but the scheduler tells the arms apart.
        assert words[: words.index("--scheduler-cls")] == default
    folders = [value(words, "--result-dir") for words in printed[1::2]]
    assert folders == [f"{sandbox}/runs/task3-cpu/{arm}-r1" for arm in ("default", *CLASSES)]
    assert {"--save-result", "--save-detailed"} <= set(printed[1])
    assert not (sandbox / "runs").exists()


def test_values_arms_settings_and_more_options_reach_the_commands(sandbox: Path) -> None:
    serve, bench = commands(
        sandbox,
        ARMS="sjf",
        SJF_SETTINGS='{"aging_tokens_per_s": 50}',
        SERVE_ARGS="--watermark 0.03",
        BENCH_ARGS="--burstiness 0.5",
        REQUEST_RATE="7",
        MAX_NUM_SEQS="5",
        RUN_DIR="elsewhere",
    )
    record = str(sandbox / "elsewhere/servers/sjf.steps.jsonl")
    assert json.loads(value(serve, "--additional-config")) == {
        "lab3": {"record": record, "aging_tokens_per_s": 50}
    }
    assert value(serve, "--watermark") == "0.03"
    assert value(serve, "--max-num-seqs") == "5"
    assert value(bench, "--burstiness") == "0.5"
    assert value(bench, "--request-rate") == "7"
    assert value(bench, "--result-dir") == str(sandbox / "elsewhere/sjf-r1")


@pytest.mark.parametrize(
    ("rounds", "expected"),
    [
        ("1", ["default-r1", "sjf-r1"]),
        ("2", ["default-r1", "sjf-r1", "default-r3", "sjf-r3"]),
        ("3", ["default-r1", "sjf-r1", "default-r2", "sjf-r2", "default-r3", "sjf-r3"]),
    ],
)
def test_rounds_take_turns(sandbox: Path, rounds: str, expected: list[str]) -> None:
    printed = commands(sandbox, ARMS="default sjf", REPEATS="3", ROUNDS=rounds)
    assert [Path(value(words, "--result-dir")).name for words in printed[1::2]] == expected


def test_an_unknown_arm_is_one_line_before_anything_runs(sandbox: Path) -> None:
    done = task3(sandbox, ARMS="default fastest")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("error: no arm 'fastest': set ARMS to some of")
    assert done.stdout == ""


def test_the_gpu_profile_is_the_labs_own_load(sandbox: Path) -> None:
    names = ("MODEL", "INPUT_LEN", "OUTPUT_LEN", "NUM_PROMPTS", "REQUEST_RATE", "REPEATS")
    env = {name: word for name, word in environment(sandbox).items() if name not in names}
    done = subprocess.run(
        ["bash", str(sandbox / "task3.sh")],
        env=env | {"PROFILE": "gpu", "DRY_RUN": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    serve, bench = map(shlex.split, done.stdout.splitlines()[:2])
    assert serve[:3] == ["vllm", "serve", "Qwen/Qwen3-0.6B"]
    assert value(serve, "--max-num-batched-tokens") == "2048"
    assert value(serve, "--max-num-seqs") == "256"
    assert value(serve, "--gpu-memory-utilization") == "0.9"
    assert value(bench, "--random-input-len") == "1024"
    assert value(bench, "--random-output-len") == "256"
    assert value(bench, "--num-prompts") == "1000"
    assert value(bench, "--request-rate") == "8"
    assert value(bench, "--seed") == "42"


# -- vLLM's own view of the commands, of the GPU's as well --


@pytest.mark.parametrize("profile", PROFILES)
def test_vllm_takes_every_command_of_a_profile(
    sandbox: Path, parsers, micro_model: Path, profile: str
) -> None:
    from vllm.engine.arg_utils import AsyncEngineArgs

    serve_parser, bench_parser = parsers
    every_arm = (
        "default passthrough prefill_first sjf decode_first fair_share adaptive dla dla_srpt"
    )
    printed = commands(sandbox, PROFILE=profile, ARMS=every_arm, MODEL=str(micro_model))
    assert len(printed) == 2 * 9
    for serve, bench in zip(printed[::2], printed[1::2], strict=True):
        args = serve_parser.parse_args(serve[2:])
        args.model = args.model_tag
        config = AsyncEngineArgs.from_cli_args(args).create_engine_config()
        wanted = value(serve, "--scheduler-cls") if "--scheduler-cls" in serve else None
        assert config.scheduler_config.scheduler_cls == wanted
        assert config.scheduler_config.max_num_seqs == int(value(serve, "--max-num-seqs"))
        assert not config.cache_config.enable_prefix_caching
        asked = bench_parser.parse_args(bench[3:])
        assert asked.num_prompts == int(value(bench, "--num-prompts"))
        longest = asked.random_input_len + asked.random_output_len
        assert longest <= config.model_config.max_model_len


# -- runs with stubs --


def test_a_bad_arm_fails_before_a_model_loads_and_the_others_go_on(sandbox: Path) -> None:
    done = task3(sandbox, ARMS="sjf default", SJF_SETTINGS='{"agin_tokens_per_s": 1}')
    assert done.returncode == 1
    runs = sandbox / "runs/task3-cpu"
    failed = json.loads((runs / "sjf-r1/run.json").read_text())
    assert failed["status"] == "failed"
    assert "unknown lab3 setting 'agin_tokens_per_s'" in failed["reason"]
    assert "did you mean 'aging_tokens_per_s'" in done.stdout
    assert json.loads((runs / "default-r1/run.json").read_text())["status"] == "ok"
    assert (runs / "table.md").exists()
    assert with_marker(str(sandbox)) == []


def test_a_good_comparison_ends_with_table_and_figures_and_is_not_made_twice(sandbox: Path) -> None:
    port = str(free_port())
    done = task3(sandbox, ARMS="default", REPEATS="2", PORT=port)
    assert done.returncode == 0, done.stdout + done.stderr
    runs = sandbox / "runs/task3-cpu"
    assert {"table.md", "runs.csv", "summary.csv"} <= {path.name for path in runs.iterdir()}
    assert list(runs.glob("*.png"))
    again = task3(sandbox, ARMS="default", REPEATS="2", PORT=port)
    assert again.returncode == 0
    assert again.stdout.count("finished before, skipped") == 2


def test_a_taken_port_ends_it_all(sandbox: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        done = task3(sandbox, ARMS="default sjf", PORT=str(listener.getsockname()[1]))
    assert done.returncode == 2
    assert "is taken" in done.stderr.splitlines()[-1]
    assert done.stderr.count("is taken") == 1


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_outlives_the_script(sandbox: Path, signum: signal.Signals) -> None:
    env = environment(sandbox, ARMS="default sjf", STUB_ARGS="--seconds 3600")
    command = ["bash", str(sandbox / "task3.sh")]
    log = sandbox / "runs/task3-cpu/default-r1/bench.log"
    with subprocess.Popen(command, env=env, start_new_session=True) as script:
        wait_until(lambda: log.exists() and "bench starts" in log.read_text(), "the bench")
        if signum == signal.SIGINT:
            os.killpg(script.pid, signum)  # as Ctrl-C in a terminal
        else:
            script.send_signal(signum)
        script.wait()
        wait_until(lambda: not with_marker(str(sandbox)), "the end of everything")
    assert script.returncode in (-signum, 128 + signum)
    assert not (sandbox / "runs/task3-cpu/sjf-r1").exists()
    assert not (sandbox / "runs/task3-cpu/table.md").exists()


# -- on a real server --


@pytest.mark.live
@pytest.mark.timeout(900)
def test_kill_9_of_the_script_ends_a_real_server_with_its_workers(
    tmp_path: Path, micro_model: Path
) -> None:
    python = str(Path(sys.executable).parent)
    env = environment(
        ROOT,
        **{"PATH": os.pathsep.join([python, os.environ["PATH"]]), "MODEL": str(micro_model)},
        **{"ARMS": "sjf", "RUN_DIR": str(tmp_path), "NUM_PROMPTS": "200", "REQUEST_RATE": "1"},
    )
    record = tmp_path / "servers/sjf.steps.jsonl"
    with subprocess.Popen(["bash", str(ROOT / "task3.sh")], env=env) as script:
        # The engine makes steps: server, engine, worker and bench are all there.
        wait_until(lambda: script.poll() is not None or has_lines(record), "the first step", 240)
        assert script.poll() is None
        started = psutil.Process(script.pid).children(recursive=True)
        names = [process.name() for process in started]
        assert any("VLLM" in name for name in names), names
        script.kill()
        script.wait()
        _, alive = psutil.wait_procs(started, timeout=60)
    assert alive == []


def has_lines(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0

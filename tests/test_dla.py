"""dla.sh from outside: its commands, what vLLM thinks of them, and a comparison with stubs."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from script_sandbox import environment_of, sandbox_of
from test_processes import ROOT, STUB
from test_server import free_port
from test_table import cells

PROFILES = [path.stem for path in sorted((ROOT / "profiles").glob("*.env"))]
ARMS = [
    "default",
    "passthrough",
    "dla_victim",
    "dla",
    "future_peak",
    "dla_srpt",
    "watermark",
    "sjf",
]
DLA, SRPT = "my_scheduler.DLAScheduler", "my_scheduler.DLASRPTScheduler"


@pytest.fixture
def sandbox(tmp_path: Path) -> Path:
    """The script beside its profiles, without a .venv, and a `vllm` that is a stub."""
    vllm = f'#!/bin/sh\nexec {sys.executable} {STUB} "$@" --random-output-len 4\n'
    return sandbox_of("dla.sh", tmp_path, vllm)


def environment(root: Path, **values: str) -> dict[str, str]:
    small = {
        **{"DLA_INPUT_LEN": "8", "DLA_OUTPUT_LEN": "4", "DLA_NUM_PROMPTS": "20"},
        **{"DLA_REPEATS": "1", "DLA_REQUEST_RATE": "100"},
    }
    return environment_of(root, **small | values)


def dla(root: Path, *options: str, **values: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        ["bash", str(root / "dla.sh"), *options],
        env=environment(root, **values),
        cwd=root,
        capture_output=True,
        text=True,
    )


def commands(root: Path, *options: str, **values: str) -> list[list[str]]:
    """What DRY_RUN=1 prints: a server and a bench for each arm and round."""
    done = dla(root, *options, DRY_RUN="1", **values)
    assert done.returncode == 0, done.stderr
    return [shlex.split(line) for line in done.stdout.splitlines() if not line.startswith("#")]


def value(words: list[str], name: str) -> str:
    assert words.count(name) == 1
    return words[words.index(name) + 1]


def settings(words: list[str]) -> dict:
    found = json.loads(value(words, "--additional-config"))["lab3"]
    found.pop("record")
    return found


# -- commands --


def test_the_arms_differ_in_scheduler_and_watermark_only(sandbox: Path) -> None:
    printed = commands(sandbox)
    servers, benches = printed[::2], printed[1::2]
    assert [Path(value(words, "--result-dir")).name for words in benches] == [
        f"{arm}-r1" for arm in ARMS
    ]
    assert len({tuple(words[: words.index("--result-dir")]) for words in benches}) == 1
    default = servers[0]
    assert default[:4] == ["env", "LAB3_PREDICTOR=oracle", "vllm", "serve"]
    assert value(default, "--middleware") == "lab3.predictor.PredictLength"
    assert int(value(default, "--num-gpu-blocks-override")) > 0
    for arm, words in zip(ARMS, servers, strict=True):
        own = {"--scheduler-cls", "--watermark"} & set(words)
        assert words[: words.index(min(own)) if own else None] == default
        expected = {"default": set(), "watermark": {"--watermark"}}
        assert own == expected.get(arm, {"--scheduler-cls"})
    by_arm = dict(zip(ARMS, servers, strict=True))
    assert value(by_arm["watermark"], "--watermark") == "0.03"
    assert value(by_arm["dla_srpt"], "--scheduler-cls") == SRPT
    for arm, expected in (
        ("dla_victim", {"admission": "off"}),
        ("dla", {"admission": "reserve"}),
        ("future_peak", {"victim": "remaining_per_context", "admission": "future_peak"}),
    ):
        assert value(by_arm[arm], "--scheduler-cls") == DLA
        assert settings(by_arm[arm]) == expected


def test_the_arms_take_turns(sandbox: Path) -> None:
    printed = commands(sandbox, ARMS="default dla", DLA_REPEATS="2")
    folders = [Path(value(words, "--result-dir")).name for words in printed[1::2]]
    assert folders == ["default-r1", "dla-r1", "default-r2", "dla-r2"]
    together = commands(sandbox, ARMS="default dla", DLA_REPEATS="2", ROUNDS="1")
    assert len(together) == 4


def test_each_prediction_is_an_arm_of_those_that_read_it(sandbox: Path) -> None:
    printed = commands(
        sandbox, ARMS="default dla sjf", PREDICTIONS="oracle noise:0.5,missing:0.1 history:0.9"
    )
    folders = [Path(value(words, "--result-dir")).name for words in printed[1::2]]
    told = dict(zip(folders, [words[1] for words in printed[::2]], strict=True))
    assert told == {
        "default-r1": "LAB3_PREDICTOR=oracle",
        "dla-r1": "LAB3_PREDICTOR=oracle",
        "dla-noise-0.5-missing-0.1-r1": "LAB3_PREDICTOR=noise:0.5,missing:0.1",
        "dla-history-0.9-r1": "LAB3_PREDICTOR=history:0.9",
        "sjf-r1": "LAB3_PREDICTOR=oracle",
    }


def test_caching_settings_and_options_reach_the_commands(sandbox: Path) -> None:
    serve, bench = commands(
        sandbox,
        **{"ARMS": "dla", "CACHING": "on", "DLA_SETTINGS": '{"victim": "least_computed"}'},
        **{"SERVE_ARGS": "--max-num-seqs 5", "BENCH_ARGS": "--burstiness 2"},
        **{"DLA_KV_BLOCKS": "33", "DLA_INPUT_LEN": "9", "DLA_MAX_MODEL_LEN": "64"},
    )
    assert "--enable-prefix-caching" in serve
    assert "--no-enable-prefix-caching" not in serve
    assert value(serve, "--num-gpu-blocks-override") == "33"
    assert value(serve, "--max-model-len") == "64"
    assert settings(serve) == {"victim": "least_computed"}
    assert serve[-2:] == ["--max-num-seqs", "5"]
    assert value(bench, "--burstiness") == "2"
    assert value(bench, "--random-input-len") == "9"
    assert value(bench, "--result-dir") == str(sandbox / "runs/dla-cpu-caching/dla-r1")
    off = commands(sandbox, ARMS="dla")[0]
    assert "--no-enable-prefix-caching" in off


@pytest.mark.parametrize(
    ("options", "values", "message"),
    [
        ((), {"ARMS": "default best"}, "error: no arm 'best': set ARMS to some of"),
        ((), {"PREDICTIONS": "orcale"}, "error: LAB3_PREDICTOR: unknown prediction 'orcale'"),
        ((), {"PREDICTIONS": " "}, "error: PREDICTIONS is empty"),
        ((), {"CACHING": "yes"}, "error: CACHING must be on or off, not 'yes'"),
        ((), {"ROUNDS": "0"}, "error: ROUNDS must be a number of 1 or more, not '0'"),
        ((), {"LIARS": "20%"}, "error: LIARS must be a share below 1, like 0.2, not '20%'"),
        ((), {"LIARS": "0.001"}, "error: LIARS=0.001 of 20 requests is none"),
        (("--trace", "gone.csv"), {}, "error: no trace '"),
        (("--trase", "x"), {}, "error: unknown option '--trase'"),
        (("--trace",), {}, "error: unknown option '--trace'"),
    ],
)
def test_nonsense_is_one_line_before_anything_runs(sandbox, options, values, message) -> None:
    done = dla(sandbox, *options, **values)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(message)
    assert not (sandbox / "runs").exists()


def test_a_trace_replaces_the_random_requests(sandbox: Path) -> None:
    (sandbox / "t.csv").write_text("arrival_s,input_tokens,output_tokens\n0,5,3\n1,7,2\n")
    serve, bench = commands(sandbox, "--trace", "t.csv", ARMS="dla")
    assert bench[:3] == ["env", "PYTHONHASHSEED=0", "vllm"]
    assert value(bench, "--dataset-name") == "timed_trace"
    assert value(bench, "--dataset-path") == str(sandbox / "runs/dla-cpu-trace/servers/trace.jsonl")
    chunk = value(bench, "--timed-trace-chunk-hash-size")
    assert chunk == value(serve, "--max-model-len"), "a prompt is one piece"
    assert "--random-input-len" not in bench


def test_lying_clients_are_a_second_bench_beside_the_honest_one(sandbox: Path) -> None:
    values = {"ARMS": "default", "PORT": str(free_port()), "DLA_REQUEST_RATE": "10"}
    serve, bench = commands(sandbox, LIARS="0.2", **values)
    assert bench[:4] == ["bash", "scripts/with_liars.sh", "4", "2"]
    assert (value(bench, "--num-prompts"), value(bench, "--request-rate")) == ("16", "8")
    assert value(bench, "--result-dir") == str(sandbox / "runs/dla-cpu-liars/default-r1")
    assert serve == commands(sandbox, **values)[0]


# -- vLLM's own view of the commands --


@pytest.mark.parametrize("profile", PROFILES)
def test_vllm_takes_every_command_of_a_profile(
    sandbox: Path, parsers, micro_model: Path, profile: str
) -> None:
    from vllm.engine.arg_utils import AsyncEngineArgs

    serve_parser, bench_parser = parsers
    own = ("DLA_INPUT_LEN", "DLA_OUTPUT_LEN", "DLA_NUM_PROMPTS", "DLA_REPEATS", "DLA_REQUEST_RATE")
    env = {k: v for k, v in environment(sandbox).items() if k not in own}
    env |= {"PROFILE": profile, "MODEL": str(micro_model), "DRY_RUN": "1", "ROUNDS": "1"}
    done = subprocess.run(
        ["bash", str(sandbox / "dla.sh")], env=env, capture_output=True, text=True, check=True
    )
    lines = [line for line in done.stdout.splitlines() if not line.startswith("#")]
    assert len(lines) == 2 * len(ARMS)
    for serve, bench in zip(
        map(shlex.split, lines[::2]), map(shlex.split, lines[1::2]), strict=True
    ):
        args = serve_parser.parse_args(serve[4:])
        args.model = args.model_tag
        config = AsyncEngineArgs.from_cli_args(args).create_engine_config()
        asked = bench_parser.parse_args(bench[3:])
        ratio = 1 + float(asked.random_range_ratio)
        longest = ratio * (asked.random_input_len + asked.random_output_len) + 2
        assert longest <= config.model_config.max_model_len
        # vLLM refuses to start when one request might not fit; block 0 is its own.
        pool = (config.cache_config.num_gpu_blocks_override - 1) * config.cache_config.block_size
        assert config.model_config.max_model_len <= pool


# -- runs with stubs --


def test_a_comparison_ends_with_table_figure_and_simulation(sandbox: Path) -> None:
    """The stub's steps are no engine's, so the simulator has nothing to fit on and says so."""
    done = dla(sandbox, ARMS="default passthrough dla", PREDICTIONS="oracle noise:1")
    runs = sandbox / "runs/dla-cpu"
    rows = cells((runs / "table.md").read_text(), "DLA: strategies")
    assert list(rows) == [
        *("Default", "Passthrough", "DLA: victim + reserve", "DLA: victim + reserve (noise:1)"),
    ], done.stdout + done.stderr
    assert rows["Default"][6] == "0"  # preempted
    summary = pd.read_csv(runs / "summary.csv")
    assert set(summary.arm) == {"default", "passthrough", "dla", "dla-noise:1"}
    text = (runs / "table.md").read_text()
    assert "KV pool of 101 blocks of 16 = 1,600 tokens" in text
    assert "predictions noise:1 / oracle" in text
    assert (runs / "dla_jct.png").stat().st_size > 10_000
    assert "experiments.dla_live:" in done.stderr
    assert done.returncode == 1


def test_without_passthrough_nothing_is_simulated_and_all_is_well(sandbox: Path) -> None:
    port = str(free_port())
    done = dla(sandbox, ARMS="default dla", PORT=port)
    assert done.returncode == 0, done.stdout + done.stderr
    again = dla(sandbox, ARMS="default dla", PORT=port)
    assert again.stdout.count("finished before, skipped") == 2
    other = dla(sandbox, ARMS="default dla", PORT=port, PREDICTIONS="constant:5")
    changed = "env LAB3_PREDICTOR=oracle -> LAB3_PREDICTOR=constant:5"
    assert f"default-r1: made again, changed: {changed}" in other.stdout


def test_the_rate_is_a_share_of_what_the_machine_serves_with_this_pool(sandbox: Path) -> None:
    done = dla(sandbox, ARMS="default", DLA_REQUEST_RATE="steady:0.5", DLA_CAPACITY_PROMPTS="20")
    assert done.returncode == 0, done.stdout + done.stderr
    folder = sandbox / "runs/capacity-dla-cpu/default-r1"
    measured = json.loads((folder / "run.json").read_text())
    assert measured["point"]["request_rate"] == "inf"
    assert measured["kv_cache"] is not None
    run = json.loads((sandbox / "runs/dla-cpu/default-r1/run.json").read_text())
    # The stub's requests end 10 ms apart.
    assert run["point"]["request_rate"] == pytest.approx(50, rel=0.05)


def test_a_trace_is_prepared_once_and_replayed(sandbox: Path) -> None:
    rows = "".join(f"{i},{40 + i},{30 + i}\n" for i in range(12))
    (sandbox / "t.csv").write_text("arrival_s,input_tokens,output_tokens\n" + rows)
    done = dla(
        sandbox, "--trace", "t.csv", ARMS="default", DLA_MAX_MODEL_LEN="64", DLA_NUM_PROMPTS="10"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (sandbox / "runs/dla-cpu-trace/servers/trace.jsonl").read_text().splitlines()
    assert len(lines) == 10
    assert all(r["input_tokens"] + r["output_tokens"] <= 64 for r in map(json.loads, lines))
    run = json.loads((sandbox / "runs/dla-cpu-trace/default-r1/run.json").read_text())
    assert run["asked"]["num_prompts"] == 10


def test_who_lies_is_measured_apart_from_who_does_not(sandbox: Path) -> None:
    done = dla(sandbox, ARMS="default passthrough", LIARS="0.2")
    assert done.returncode == 0, done.stdout + done.stderr
    folder = sandbox / "runs/dla-cpu-liars/default-r1"
    assert json.loads((folder / "bench.json").read_text())["num_prompts"] == 16
    assert json.loads((folder / "liars.json").read_text())["num_prompts"] == 4
    said = (folder / "bench.log").read_text()
    assert said.count("bench starts") == 2
    assert "Default, 0.2 lie" in (folder.parent / "table.md").read_text()
    assert "Passthrough" in (folder.parent / "liars.md").read_text()
    assert "0.2 lie" not in (folder.parent / "liars.md").read_text()


def test_a_lying_client_that_fails_fails_the_run(sandbox: Path) -> None:
    vllm = sandbox / "bin/vllm"
    text = vllm.read_text().replace("exec", 'case "$*" in *liars.json*) exit 3 ;; esac; exec')
    vllm.write_text(text)
    done = dla(sandbox, ARMS="default", LIARS="0.2")
    assert done.returncode == 1
    assert "the bench ended with exit code 3" in done.stdout

"""Simulated runs are read by what reads live runs; the command line."""

import json
from dataclasses import replace

import pytest

from lab3 import simulate as cli
from lab3.results import check_against_vllm, load_run
from lab3.sim.jobs import Job, simulate
from lab3.sim.writer import write_run
from lab3.summary import run_row
from lab3.table import main as table_main

OPTIONS = ["--quiet", "--num-prompts", "12", "--input-len", "40", "--output-len", "12"]
OPTIONS += ["--request-rate", "200", "--seed", "7", "--model", "qwen3-0.6b"]
OPTIONS += ["--hardware", "h200", "--kv-blocks", "64"]


def test_a_simulated_run_reads_as_a_live_one(tmp_path):
    job = Job(num_prompts=20, input_len=40, output_len=12, request_rate=200.0, seed=7)
    done = simulate(job)
    write_run(tmp_path / "sim-r1", job, done)
    run = load_run(tmp_path / "sim-r1")
    assert run.valid
    assert run.info.source == "simulated"
    assert check_against_vllm(run) == []
    row = run_row(run)
    assert row["requests_sent"] == 20
    first_ms = 1e3 * (done.token_times_s[5][0] - done.arrival_s[5])
    assert run.requests.ttft_ms[5] == pytest.approx(first_ms)
    assert row["step_p50_ms"] > 0
    assert run.info.raw["cost_model"] == "roofline, Qwen2.5-7B on NVIDIA A100 SXM 80 GB"
    assert 0 < run.info.raw["bounds"]["makespan_bound_fraction"] < 1


def test_tables_of_simulated_runs_show_the_fraction_of_the_bound(tmp_path, capsys):
    job = Job(num_prompts=20, input_len=40, output_len=12, request_rate=200.0, seed=7)
    for arm, scheduler in (("default", None), ("sjf", "my_scheduler.SJFScheduler")):
        made = replace(job, arm=arm, scheduler=scheduler)
        write_run(tmp_path / f"runs/{arm}-r1", made, simulate(made))
    words = [str(tmp_path / "runs"), "--out", str(tmp_path / "out"), "--task", "sim"]
    assert table_main(words) == 0
    assert "Fraction of bound: what no scheduler beats" in capsys.readouterr().out
    text = (tmp_path / "out/table.md").read_text()
    assert text.count("fraction of bound") == 3
    bounds = load_run(tmp_path / "runs/sjf-r1").info.raw["bounds"]
    row = next(line for line in text.splitlines() if line.startswith("| sjf") and "%" in line)
    assert f"{bounds['e2e_bound_fraction']:.1%}" in row


def test_the_same_command_writes_the_same_bytes(tmp_path, capsys):
    texts, folders = [], [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        words = [*OPTIONS, "--scheduler", "my_scheduler.SJFScheduler", "--out", str(folder)]
        assert cli.main(words) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
    assert "SIMULATED" in texts[0]
    names = sorted(path.name for path in folders[0].iterdir())
    assert names == ["bench.json", "run.json", "steps.jsonl"]
    for name in names:
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes()
    assert json.loads((folders[0] / "run.json").read_text())["arm"] == "sjf"


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--scheduler", "my_scheduler.SJF"], 2, "SJF"),
        (["--scheduler", "my_scheduler.SJFScheduler", "--settings", '{"aging": 1}'], 2, "aging"),
        (["--settings", "[1]"], 2, "--settings must be an object"),
        (["--hardware", "a1000"], 2, "unknown hardware 'a1000'"),
        (["--trace", "nowhere.csv"], 2, "no trace nowhere.csv"),
        (["--request-rate", "0"], 2, "rate must be above 0"),
        (["--kv-blocks", "3", "--clip", "refuse"], 2, "are longer than 32 tokens"),
        (["--max-num-seqs", "4096"], 2, "max_num_batched_tokens"),
    ],
)
def test_mistakes_are_said_in_one_line(tmp_path, capsys, words, code, message):
    assert cli.main([*OPTIONS, "--out", str(tmp_path / "out"), *words]) == code
    error = capsys.readouterr().err.strip()
    assert message in error
    assert error.count("\n") == 0
    assert not (tmp_path / "out").exists()

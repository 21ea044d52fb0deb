"""The experiments' own arithmetic, on tiny simulations and hand-made rows."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from experiments import sim_dla, sim_map, validate_gpu, validate_live
from experiments.common import Arm, Table, capacity, measure
from experiments.report import relative
from lab3.sim.jobs import Job

TINY = Job(num_prompts=12, input_len=40, output_len=10, request_rate=100.0, kv_blocks=100)


def test_rows_that_are_there_are_not_simulated_again(tmp_path, capsys):
    table = Table(tmp_path / "t.csv", ("arm", "seed"))
    wanted = [({"arm": "default", "seed": seed}, replace(TINY, seed=seed)) for seed in (1, 2)]
    assert table.fill(wanted, 1, limit_s=600)
    first = table.path.read_bytes()
    assert "0 of 2 simulations left" in capsys.readouterr().out
    assert table.fill(wanted, 1, limit_s=600)
    assert capsys.readouterr().out == ""
    assert table.path.read_bytes() == first
    more = [*wanted, ({"arm": "default", "seed": 3}, replace(TINY, seed=3))]
    assert not table.fill(more, 1, limit_s=0)
    assert table.fill(more, 1, limit_s=600)
    assert list(table.read().seed) == ["1", "2", "3"]


def test_capacity_is_what_an_overloaded_engine_delivers():
    most = capacity(replace(TINY, num_prompts=60))
    row = measure(replace(TINY, num_prompts=60, request_rate=3 * most))
    assert row["requests_per_s"] == pytest.approx(most, rel=0.25)
    assert (row["request_rate"], row["kv_blocks"]) == (3 * most, TINY.kv_blocks)
    assert 0 < row["makespan_bound_fraction"] < 1


def test_changes_are_taken_seed_by_seed():
    rows = [("default", 1, 10.0), ("default", 2, 20.0), ("x", 1, 5.0), ("x", 2, 30.0)]
    frame = pd.DataFrame(rows, columns=["arm", "seed", "m"]).assign(load="1")
    change = relative(frame, ("load",), "m").loc[("1", "x")]
    assert (change["mean"], change.low, change.high) == (0.0, -0.5, 0.5)


def test_a_winner_has_to_win_at_every_seed():
    columns = ["arm", "seed", "e2e_mean_ms", "max_gap_p99_ms"]
    rows = [("default", 1, 10, 10), ("default", 2, 10, 10), ("x", 1, 5, 5), ("x", 2, 9, 11)]
    frame = pd.DataFrame(rows, columns=columns).assign(lengths="l", load="1", kv="scarce")
    frame = frame.assign(waiting_mean=1.0, kv_peak_share=0.5, preemptions=0)
    found = sim_map.best(frame).iloc[0]
    assert found.best_e2e_mean_ms == "x"
    assert found.best_max_gap_p99_ms == "no clear winner"


def test_the_dla_table_has_every_victim_admission_and_control():
    names = {arm.name for arm in sim_dla.ARMS}
    assert len(names) == len(sim_dla.ARMS) == 16
    assert {"default", "reserve_full_isl off", "watermark 0.03", "dlasrpt", "sjf"} <= names
    assert set(sim_dla.PREDICTED_ARMS) < names
    for arm in sim_dla.ARMS:
        small = replace(TINY, num_prompts=3, predictions="oracle")
        assert measure(arm.job(small))["preemptions"] == 0


def test_scarce_pools_hold_the_longest_request():
    for lengths in ("azure-conv-like", "burstgpt-like", "decode-heavy"):
        job = sim_dla.lengths_job(lengths, None, 50)
        scarce = replace(job, kv_blocks=sim_dla.scarce_blocks(job), clip="refuse")
        assert scarce.workload().longest <= scarce.longest
        assert scarce.kv_blocks < job.kv_blocks


def test_a_measured_run_is_compared_metric_by_metric(tmp_path, monkeypatch, capsys):
    rows = [
        {
            "input_toks": 20,
            "output_toks": 5,
            "arrival_time": float(i),
            "queued_ts": float(i),
            "first_token_ts": i + 0.5,
            "last_token_ts": i + 1.0,
        }
        for i in range(4)
    ]
    path = tmp_path / "requests.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setattr("sys.argv", ["validate_gpu", str(path), "--out", str(tmp_path)])
    assert validate_gpu.main() == 1
    table = pd.read_csv(tmp_path / "validation_gpu.csv")
    judged = table[(table.metric == "TTFT") & (table.statistic == "P50")].iloc[0]
    assert judged.measured_s == 0.5
    assert judged.error == pytest.approx(judged.simulated_s / 0.5 - 1, rel=1e-3)
    assert set(table.metric) == {"TTFT", "TPOT", "E2E"}
    varied = pd.read_csv(tmp_path / "validation_gpu_assumptions.csv").set_index("changed")
    assert varied.notna().all(axis=None)
    slower = varied.loc["bandwidth_efficiency -10 %"] > varied.loc["bandwidth_efficiency +10 %"]
    assert slower[["TPOT P50", "E2E P50"]].all()


def test_tpot_leaves_out_answers_of_one_token():
    found = validate_gpu.latencies(np.array([1.0, 1.0]), np.array([1.0, 3.0]), np.array([1, 5]))
    assert found["TPOT"].tolist() == [0.5]


def test_a_live_run_is_simulated_as_its_commands_say(tmp_path):
    serve = "vllm serve m --max-num-seqs 64 --max-num-batched-tokens 512 --max-model-len 4096"
    bench = "vllm bench serve --random-input-len 256 --random-output-len 64 --seed 7"
    raw = {
        "arm": "sjf",
        "scheduler_cls": "my_scheduler.SJFScheduler",
        "scheduler_settings": {"aging_tokens_per_s": 5},
        "async_scheduling": False,
        "serve_cmd": [*serve.split(), "--no-enable-prefix-caching"],
        "bench_cmd": [*bench.split(), "--request-rate", "20", "--num-prompts", "160"],
        "kv_cache": {"num_blocks": 500, "block_size": 32},
    }
    job = validate_live.job_of(raw, tmp_path / "cost.json")
    assert (job.num_prompts, job.input_len, job.output_len, job.seed) == (160, 256, 64, 7)
    assert (job.max_num_seqs, job.max_num_batched_tokens, job.block_size) == (64, 512, 32)
    assert (job.request_rate, job.enable_prefix_caching) == (20.0, False)
    assert job.settings == {"aging_tokens_per_s": 5}


def test_a_run_is_never_judged_by_what_it_was_fitted_on(monkeypatch, tmp_path, capsys):
    words = ["validate_live", "--calibrate", str(tmp_path / "a"), "--predict", str(tmp_path / "a")]
    monkeypatch.setattr("sys.argv", words)
    assert validate_live.main() == 2
    assert "is fitted on and must not be predicted" in capsys.readouterr().err


def test_an_arm_is_its_class_settings_and_options():
    job = Arm("w", "SJFScheduler", {"aging_tokens_per_s": 1.0}, {"watermark": 0.03}).job(TINY)
    assert job.scheduler == "my_scheduler.SJFScheduler"
    assert (job.arm, job.watermark, job.settings) == ("w", 0.03, {"aging_tokens_per_s": 1.0})

"""What the simulator says beside live runs, and what lies cost, on tiny simulations."""

import math
from dataclasses import replace

import pandas as pd
from factories import engine_trace, write_run

from experiments import dla_live, liars, validate_live
from lab3.sim.jobs import Job

TINY = Job(num_prompts=12, input_len=40, output_len=10, request_rate=100.0, kv_blocks=100)


def test_predictions_watermark_pool_and_trace_of_a_live_run_are_simulated(tmp_path):
    trace = tmp_path / "t.jsonl"
    trace.write_text('{"arrival_s": 0, "input_tokens": 9, "output_tokens": 4}\n' * 3)
    serve = (
        "env LAB3_PREDICTOR=oracle,liars:1 vllm serve m --watermark 0.03 --enable-prefix-caching"
    )
    bench = f"vllm bench serve --dataset-name timed_trace --dataset-path {trace} --num-prompts 3"
    raw = {
        **{"arm": "dla", "scheduler_cls": "my_scheduler.DLAScheduler", "scheduler_settings": {}},
        **{"async_scheduling": False, "serve_cmd": serve.split()},
        "bench_cmd": [*bench.split(), "--request-rate", "20"],
        "kv_cache": {"num_blocks": 7, "block_size": 32},
    }
    job = validate_live.job_of(raw, tmp_path / "cost.json")
    assert (job.watermark, job.enable_prefix_caching, job.kv_blocks) == (0.03, True, 7)
    assert job.request_rate == math.inf, "the file holds the times"
    assert job.workload().predicted_tokens == (1, 1, 1)
    assert job.workload().input_tokens == (9, 9, 9)


def test_measured_and_simulated_stand_side_by_side():
    def frame(default, dla, metrics=dla_live.METRICS):
        rows = [{"arm": "default", "label": "Default"}, {"arm": "passthrough", "label": "P"}]
        rows += [{"arm": "dla", "label": "DLA"}]
        values = dict(zip(("default", "passthrough", "dla"), (default, default, dla), strict=True))
        return pd.DataFrame([r | dict.fromkeys(metrics, values[r["arm"]]) for r in rows])

    measured = frame(100.0, 50.0).sample(frac=1, random_state=1)  # whatever its order
    table = dla_live.beside(measured, frame(80.0, 60.0)).set_index("arm")
    assert table.measured_ratio_e2e_mean_ms["dla"] == 0.5
    assert table.simulated_ratio_e2e_mean_ms["dla"] == 0.75
    assert table.measured_preemptions["dla"] == 50
    assert list(table.fitted) == [False, True, False]
    text = dla_live.printed(table.reset_index())
    assert "0.50x" in text
    assert "0.75x" in text


def test_a_live_comparison_needs_a_passthrough_run(tmp_path, capsys):
    write_run(tmp_path / "runs/default-r1", engine_trace(n=30)[0], task="dla")
    assert dla_live.main([str(tmp_path / "runs"), "--out", str(tmp_path / "out")]) == 2
    assert "needs a Passthrough run" in capsys.readouterr().err


def test_honest_and_lying_requests_are_told_apart():
    job = replace(TINY, num_prompts=60, range_ratio=0.5, predictions="oracle,liars:0.25")
    row = liars.jct_by_group(liars.ARMS[1].job(job))
    assert row["honest_requests"] + row["liars_requests"] == 60
    assert 5 <= row["liars_requests"] <= 25
    assert 0 < row["honest_mean_ms"] <= row["honest_p99_ms"]
    other = liars.jct_by_group(liars.ARMS[2].job(job))
    assert other["liars_requests"] == row["liars_requests"]


def test_lies_are_judged_seed_by_seed_against_the_default():
    def row(arm, seed, value):
        names = [f"{group}_{kind}_ms" for group in liars.GROUPS for kind in ("mean", "p99")]
        return {"arm": arm, "seed": seed} | dict.fromkeys(names, value)

    rows = [row("default", 1, 10.0), row("default", 2, 40.0), row("x", 1, 5.0), row("x", 2, 60.0)]
    ((arm, *cells),) = liars.ratio_table(pd.DataFrame(rows)).rows
    assert arm.value == "x"
    assert {(cell.value, cell.extra) for cell in cells} == {("1.00x", "0.50-1.50")}

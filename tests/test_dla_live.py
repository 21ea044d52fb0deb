"""What the simulator says beside live runs, and what lies cost, on tiny simulations."""

import json
import math
from dataclasses import replace

import pandas as pd
from factories import engine_trace, write_run

from experiments import dla_live, liars, liars_live, validate_live
from experiments.report import HONEST_AND_LIARS, lies_table
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


def test_the_lying_client_of_a_live_run_is_simulated_too():
    job = replace(TINY, num_prompts=16, request_rate=2.0)
    bench = ["vllm", "bench", "serve", "--num-prompts", "16", "--request-rate", "2"]
    assert liars.with_liars(job, bench) == job
    both = liars.with_liars(job, ["bash", "scripts/with_liars.sh", "4", "0.5", *bench])
    assert (both.num_prompts, both.request_rate) == (20, 2.5)


def test_lies_are_judged_seed_by_seed_against_the_default():
    def row(arm, seed, value):
        names = [f"{group}_{kind}_ms" for group in HONEST_AND_LIARS for kind in ("mean", "p99")]
        return {"arm": arm, "label": arm, "seed": seed} | dict.fromkeys(names, value)

    rows = [row("default", 1, 10.0), row("default", 2, 40.0), row("x", 1, 5.0), row("x", 2, 60.0)]
    ((arm, *cells),) = lies_table(pd.DataFrame(rows)).rows
    assert arm.value == "x"
    assert {(cell.value, cell.extra) for cell in cells} == {("1.00x", "0.50-1.50")}


def write_run_with_liars(folder, arm, repeat, speed, liars_speed):
    """A run folder as `LIARS=0.2 bash dla.sh` leaves it; larger speeds are shorter answers."""
    label = f"{arm.title()}, 0.2 lie"
    run = folder / f"{arm}-r{repeat}"
    honest = engine_trace(n=40, speed=speed)[0]
    write_run(run, honest, task="dla", arm=arm, label=label, repeat=repeat)
    run.joinpath("liars.json").write_text(json.dumps(engine_trace(n=20, speed=liars_speed)[0]))
    return run


def test_live_lies_are_judged_round_by_round(tmp_path, capsys):
    for repeat, speed in ((1, 1.0), (2, 3.0)):  # the machine got faster: no policy's doing
        write_run_with_liars(tmp_path / "runs", "default", repeat, speed, speed)
        write_run_with_liars(tmp_path / "runs", "dla", repeat, speed, speed / 2)
    assert liars_live.main([str(tmp_path / "runs"), "--out", str(tmp_path)]) == 0
    rows = pd.read_csv(tmp_path / "liars.csv")
    assert sorted(rows.honest_requests.unique()) == [36]
    assert sorted(rows.liars_requests.unique()) == [18]
    ((arm, *cells),) = lies_table(rows).rows
    assert (arm.value, cells[0].value, cells[1].value) == ("Dla", "1.00x", "1.00x")
    assert all(float(cell.value[:-1]) > 1.2 for cell in cells[2:])
    assert "36 honest and 18 lying requests; mean and range of 2 rounds" in capsys.readouterr().out


def test_live_lies_need_their_files_and_a_default(tmp_path, capsys):
    run = write_run_with_liars(tmp_path / "a", "dla", 1, 1.0, 1.0)
    assert liars_live.main([str(tmp_path / "a"), "--out", str(tmp_path)]) == 2
    assert "needs a default run and another arm" in capsys.readouterr().err
    run.joinpath("liars.json").unlink()
    assert liars_live.main([str(tmp_path / "a"), "--out", str(tmp_path)]) == 2
    assert "dla-r1 has no liars.json: run LIARS=0.2 bash dla.sh" in capsys.readouterr().err

"""The fit finds the cost model that made the steps, and runs that it cannot use are refused."""

from dataclasses import replace

import numpy as np
import pytest

from lab3 import calibrate as cal
from lab3.bench_file import ResultError
from lab3.results import load_run
from lab3.sim.cost_model import FittedCost, load_cost_model, save_cost_model
from lab3.sim.jobs import Job, simulate
from lab3.sim.writer import write_run

TRUTH = FittedCost(3000.0, {"prefill_tokens": 40.0, "decode_requests": 120.0}, frontend_ms=2.0)
JOB = Job(
    scheduler="my_scheduler.PassthroughScheduler",
    num_prompts=150,
    input_len=120,
    output_len=30,
    range_ratio=0.5,
    request_rate=60.0,
    kv_blocks=400,
    async_scheduling=False,
)


@pytest.fixture
def run_folder(tmp_path):
    save_cost_model(replace(TRUTH, ratio_quantiles=(0.8, 1.0, 1.2)), tmp_path / "truth.json")
    job = replace(JOB, cost_file=str(tmp_path / "truth.json"))
    write_run(tmp_path / "runs" / "one-r1", job, simulate(job))
    return tmp_path / "runs" / "one-r1"


def test_the_fit_finds_the_model_that_made_the_steps(run_folder, capsys):
    out = run_folder.parent / "cost.json"
    assert cal.main([str(run_folder), "--out", str(out)]) == 0
    found = load_cost_model(out)
    assert found.constant_us == pytest.approx(3000, rel=0.1)
    assert found.coefficients_us["prefill_tokens"] == pytest.approx(40, rel=0.1)
    assert found.coefficients_us["decode_requests"] == pytest.approx(120, rel=0.1)
    assert found.frontend_ms == pytest.approx(2.0, abs=0.2)
    assert found.ratio(0.0) == pytest.approx(0.8, abs=0.05)
    assert found.ratio(1.0) == pytest.approx(1.2, abs=0.05)
    assert "us x prefill_tokens" in capsys.readouterr().out


def test_a_calibrated_simulation_predicts_another_rate(run_folder, tmp_path):
    out = tmp_path / "cost.json"
    cal.main([str(run_folder), "--out", str(out)])
    ends_s = []
    for cost_file in (tmp_path / "truth.json", out):
        done = simulate(replace(JOB, request_rate=30.0, seed=5, cost_file=str(cost_file)))
        ends_s.append(np.mean([t[-1] for t in done.token_times_s] - np.array(done.arrival_s)))
    assert ends_s[1] == pytest.approx(ends_s[0], rel=0.05)


def test_pauses_of_the_machine_do_not_bend_the_fit(run_folder):
    steps = cal.busy_steps(load_run(run_folder))
    plain = cal.fit(steps)
    steps.loc[steps.index[::40], "period_us"] *= 10
    paused = cal.fit(steps)
    scale = paused.constant_us / plain.constant_us
    assert paused.coefficients_us["prefill_tokens"] / plain.coefficients_us[
        "prefill_tokens"
    ] == pytest.approx(scale, rel=0.1)
    assert paused.ratio(1.0) > 4


def test_nonnegative_least_squares():
    rng = np.random.default_rng(0)
    features = rng.random((50, 3))
    exact = cal.nonnegative_least_squares(features, features @ [1.0, 0.0, 2.0])
    assert exact == pytest.approx([1.0, 0.0, 2.0], abs=1e-6)
    bounded = cal.nonnegative_least_squares(features, features @ [1.0, -3.0, 2.0])
    assert bounded.min() >= 0
    assert bounded[1] == 0


def test_runs_that_cannot_be_used_are_refused_in_one_line(run_folder, capsys):
    (run_folder / "steps.jsonl").unlink()
    assert cal.main([str(run_folder), "--out", str(run_folder / "x.json")]) == 2
    assert "has no step record: calibrate on an arm of my_scheduler" in capsys.readouterr().err
    with pytest.raises(ResultError, match="49 busy steps are too few"):
        cal.fit(_few_steps(49))


def _few_steps(count):
    import pandas as pd

    names = [*cal.FITTED_FEATURES, "period_us"]
    return pd.DataFrame({name: np.arange(1.0, count + 1) for name in names})

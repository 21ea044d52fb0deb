"""The experiments' tables and commands, on hand-made rows and a tiny simulation."""

import json
import math

import pandas as pd
import pytest

from experiments import sim_dla, sim_map, sim_tasks, validate_live
from experiments.common import METRICS, Experiment, capacity
from experiments.report import (
    NO_WINNER,
    balanced,
    percent,
    relative,
    seeds_text,
    winners,
)
from lab3.sim.jobs import Job
from lab3.text_table import to_markdown


def rows_of(keys: dict, arms: dict[str, list[float]], **more) -> pd.DataFrame:
    """Rows with every metric at the arm's value, a seed a value."""
    rows = [
        keys | {"arm": arm, "seed": str(seed)} | dict.fromkeys(METRICS, value) | more
        for arm, values in arms.items()
        for seed, value in enumerate(values)
    ]
    return pd.DataFrame(rows)


DLA_KEYS = {"load": "1.0", "kv": "scarce", "caching": "False", "predictions": "oracle"}
BOUNDS = {"e2e_bound_fraction": 0.25, "request_rate": 4.0, "kv_blocks": 99, "waiting_mean": 7.0}


def test_nothing_to_compare_with_is_no_change():
    frame = rows_of({"load": "1"}, {"default": [0.0, 10.0], "x": [5.0, 5.0], "y": [0.0, 20.0]})
    change = relative(frame, ("load",), "preemptions")
    assert change["mean"]["1", "x"] == -0.5
    assert change["mean"]["1", "y"] == 1.0
    none = relative(frame[frame.seed == "0"], ("load",), "preemptions")
    assert math.isnan(none["mean"]["1", "x"])
    assert percent(none["mean"]["1", "x"]) == "–"


def test_the_winner_is_the_lowest_mean_and_better_at_every_seed():
    frame = rows_of({"load": "1"}, {"default": [10, 10], "x": [2, 11], "y": [8, 9]})
    assert winners(frame, ("load",), "e2e_mean_ms").loc["1"].arm.item() == NO_WINNER
    frame = frame[frame.arm != "x"]
    found = winners(frame, ("load",), "e2e_mean_ms").loc["1"].iloc[0]
    assert (found.arm, found.change) == ("y", pytest.approx(-0.15))


def test_only_seeds_that_all_have_are_compared():
    frame = rows_of({"load": "1"}, {"default": [1, 2, 3], "x": [1, 2]})
    kept = balanced(frame, ("load",))
    assert sorted(kept.seed) == ["0", "0", "1", "1"]
    assert seeds_text(kept, ("load",)) == "2 seeds"


@pytest.mark.parametrize(
    ("change", "worst", "said"),
    [
        (-0.40, -0.30, "holds"),
        (-0.20, -0.10, "smaller"),
        (-0.60, 0.05, "no"),
        (-0.01, -0.01, "no"),
        (0.50, 0.70, "no"),
        (math.nan, math.nan, "nothing to save"),
    ],
)
def test_a_claim_holds_from_half_of_it_on_and_at_every_seed(change, worst, said):
    assert sim_dla.verdict(change, worst, -0.47) == said


def test_claims_are_held_against_their_own_arm_and_predictions(tmp_path):
    arms = {"default": [10, 20], "remaining+off": [15, 24], "remaining+reserve": [5, 11]}
    noisy = {"remaining+reserve": [9, 18]}  # the default reads no predictions
    frame = pd.concat(
        [
            rows_of({"lengths": "a", **DLA_KEYS}, arms, **BOUNDS),
            rows_of({"lengths": "a", **DLA_KEYS, "predictions": "noise:1"}, noisy, **BOUNDS),
        ]
    )
    lines = to_markdown(sim_dla.claims_table(sim_dla.with_defaults(frame))).splitlines()
    found = {line.split(" | ")[0].strip("| "): line.split(" | ")[-1].strip("| ") for line in lines}
    assert found["victim only: JCT P50"] == "+35 %: no"
    assert found["victim + admission: JCT P50"] == "-48 %: holds"
    assert found["victim + admission: preemptions"] == "-48 %: holds"
    assert found["same, noise 1 x L: JCT P50"] == "-10 %: smaller"
    assert found["same, bias x1.5: JCT P50"] == "–"


def test_the_dla_tables_show_every_arm_that_was_simulated(tmp_path, monkeypatch):
    monkeypatch.setattr(sim_dla, "draw", lambda *_: None)
    arms = {arm.name: [10.0 + i] for i, arm in enumerate(sim_dla.ARMS)}
    frame = rows_of({"lengths": "a", **DLA_KEYS}, arms, **BOUNDS)
    sim_dla.show(frame, tmp_path)
    everything = (tmp_path / "dla.md").read_text()
    assert "load 1.0 (4 requests/s), KV scarce (99 blocks), caching off" in everything
    assert all(f"| {name} |" in everything for name in arms)
    jct = (tmp_path / "dla_jct.md").read_text()
    assert "| sjf | +130 % | – |" in jct


def test_the_task_tables_tell_load_winner_and_budget(tmp_path, monkeypatch):
    monkeypatch.setattr(sim_tasks, "draw", lambda *_: None)
    keys = {"engine": "m on h", "lengths": "fixed", "point": "rate 16", "budget": "2048"}
    frame = rows_of(keys, {"default": [10.0, 20.0], "SJF": [5.0, 8.0]}, load=1.5, **BOUNDS)
    swept = rows_of({**keys, "budget": "512"}, {"default": [12_345.0]}, load=1.5, **BOUNDS)
    sim_tasks.show(pd.concat([frame, swept]), tmp_path)
    winners_row = "| m on h, fixed | rate 16 (load 1.5) | 7 | SJF -55 % |"
    assert winners_row in (tmp_path / "tasks_winners.md").read_text()
    assert "| rate 16 (load 1.5): SJF | -55 % |" in (tmp_path / "tasks.md").read_text()
    sweep = (tmp_path / "tasks_sweep.md").read_text()
    assert "| m on h, rate 16 | 512 | 12,345 |" in sweep
    assert "| m on h, rate 16 | 2,048 | 15.0 |" in sweep


def test_the_map_names_winner_and_pressure(tmp_path, monkeypatch):
    monkeypatch.setattr(sim_map, "draw", lambda *_: None)
    keys = {"lengths": "a", "load": "1.0", "kv": "scarce"}
    frame = rows_of(keys, {"default": [1.0, 1.0], "DLA": [0.5, 0.6]}, **BOUNDS)
    sim_map.show(frame, tmp_path)
    text = (tmp_path / "map.md").read_text()
    assert "| a | scarce | 1.0 | 7.0 | 100.0% | 1.00 | DLA -45 % | DLA -45 % |" in text
    assert pd.read_csv(tmp_path / "map_best.csv").best_e2e_mean_ms.item() == "DLA"


def test_a_policy_is_judged_by_the_mean_of_its_repeats():
    metrics = (*validate_live.COMPARED, *validate_live.EXPLAINING)
    rows = pd.DataFrame(
        [
            {"arm": "sjf", "run": f"sjf-r{i}", "metric": m, "measured": value, "simulated": 115.0}
            for m in metrics
            for i, value in enumerate((90.0, 110.0))
        ]
    )
    found = validate_live.over_repeats(rows)
    assert found.error["sjf", "ttft_mean_ms"] == pytest.approx(0.15)
    goals = found.goal.loc["sjf"]
    assert (goals.ttft_mean_ms, goals.tpot_p99_ms) == (0.10, 0.25)
    assert goals[["ttft_p50_ms", "e2e_mean_ms", "engine_ttft_mean_ms"]].isna().all()
    text = "\n".join(map(to_markdown, validate_live.tables(found)))
    assert "| ttft mean | +15 % missed [90.0 to 110 ms] |" in text
    assert "| ttft p99 | +15 % [90.0 to 110 ms] |" in text
    assert "| step mean | 100 / 115 |" in text


def tiny_experiment(num_prompts: int = 5) -> Experiment:
    job = Job(num_prompts=num_prompts, input_len=40, output_len=10, kv_blocks=100)
    return Experiment(
        name="tiny",
        keys=("arm",),
        base=lambda args: job,
        wanted=lambda args: [({"arm": "default"}, job)],
        show=lambda rows, out: (out / "seen.txt").write_text(str(len(rows))),
    )


def run(monkeypatch, folder, experiment, *words: str) -> int:
    command = ["tiny", "--out", str(folder), "--processes", "1", *words]
    monkeypatch.setattr("sys.argv", command)
    return experiment.main("doc")


def test_rows_of_other_options_are_not_mixed(tmp_path, monkeypatch, capsys):
    assert run(monkeypatch, tmp_path, tiny_experiment()) == 0
    assert (tmp_path / "seen.txt").read_text() == "1"
    setup = json.loads((tmp_path / "tiny.json").read_text())
    assert setup["base_job"]["num_prompts"] == 5
    assert "+" not in setup["vllm"]
    assert run(monkeypatch, tmp_path, tiny_experiment()) == 0
    assert run(monkeypatch, tmp_path, tiny_experiment(6)) == 2
    assert "take another --out" in capsys.readouterr().err
    assert run(monkeypatch, tmp_path / "new", tiny_experiment(6), "--limit-s", "0") == 3


def test_a_mistake_is_one_line(tmp_path, monkeypatch, capsys):
    command = ["sim_dla", "--out", str(tmp_path), "--trace", str(tmp_path / "gone.csv")]
    monkeypatch.setattr("sys.argv", command)
    assert sim_dla.EXPERIMENT.main("doc", with_trace=True) == 2
    assert capsys.readouterr().err.strip().count("\n") == 0


def test_a_traces_own_times_do_not_set_the_capacity(tmp_path):
    rows = "".join(f"{i * 100.0},40,10\n" for i in range(30))
    (tmp_path / "t.csv").write_text("arrival_s,input_tokens,output_tokens\n" + rows)
    job = Job(trace=str(tmp_path / "t.csv"), num_prompts=30, resample=True, kv_blocks=100)
    assert capacity(job) > 1

"""Figures: what is drawn is what was measured, in all formats, for any number of arms."""

import json
import warnings

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from factories import bench_result, engine_trace, write_run
from matplotlib.collections import PolyCollection

from lab3.figures.__main__ import main
from lab3.figures.cdf import ENGINE, cdf_figure, quantile_curve, tail_figure
from lab3.figures.composition import KINDS, composition_figure, step_kinds
from lab3.figures.dla import dla_figure
from lab3.figures.style import log_axis, looks, new_figure
from lab3.figures.sweep import latency_figure, throughput_figure
from lab3.results import load_run
from lab3.summary import runs_table, spread, summary_table
from lab3.sweep import sweep_values

ARMS = {"default": {}, "passthrough": {}, "a": {"exclusive": True}}


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def strategy_dir(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    for arm, kwargs in ARMS.items():
        for repeat in (1, 2):
            bench, steps = engine_trace(n=60, speed=1 + 0.02 * repeat, **kwargs)
            steps = None if arm == "default" else steps
            folder = root / "task3-cpu" / f"{arm}-r{repeat}"
            write_run(folder, bench, steps, arm=arm, label=arm.title(), repeat=repeat)
    return root


@pytest.fixture(scope="module")
def strategies(strategy_dir):
    folders = sorted((strategy_dir / "task3-cpu").iterdir())
    order = {arm: i for i, arm in enumerate(ARMS)}
    return sorted((load_run(f) for f in folders), key=lambda run: order[run.info.arm])


@pytest.fixture(scope="module")
def sweep_dir(tmp_path_factory):
    root = tmp_path_factory.mktemp("sweep")
    for x in (64, 256, 1024):
        for repeat in (1, 2):
            bench, steps = engine_trace(n=60, budget=x, rate=18, speed=1 + 0.02 * repeat)
            info = {"point": {"max_num_batched_tokens": x, "request_rate": 14}, "repeat": repeat}
            asked = {"num_prompts": 60, "output_tokens": 64}
            folder = root / "task2-cpu" / f"x{x}-r{repeat}"
            write_run(folder, bench, steps, task="task2", arm="sweep", asked=asked, **info)
    return root


@pytest.fixture(scope="module")
def sweep_tables(sweep_dir):
    runs = [load_run(folder) for folder in sorted((sweep_dir / "task2-cpu").iterdir())]
    rows = runs_table(runs)
    infos = [run.info for run in runs]
    return sweep_values(summary_table(rows)), sweep_values(rows), infos


def legend_labels(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def footer_text(figure):
    return figure._supxlabel.get_text().replace("\n", " ")


# Command line


def test_strategies_give_all_figures_in_all_formats(strategy_dir, tmp_path, capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert main([str(strategy_dir), "--out", str(tmp_path)]) == 0
    names = {"fig3a_cdf", "fig3a_tail", "fig3a_cdf_engine", "fig3a_tail_engine", "fig3b_steps"}
    assert {p.name for p in tmp_path.iterdir()} == {
        f"{name}.{kind}" for name in names for kind in ("png", "svg", "pdf")
    }
    assert all(path.stat().st_size > 5000 for path in tmp_path.iterdir())
    assert capsys.readouterr().out.count(".png") == len(names)


def test_a_sweep_gives_a1_and_a2(sweep_dir, tmp_path):
    assert main([str(sweep_dir), "--out", str(tmp_path), "--task", "task2"]) == 0
    assert {p.stem for p in tmp_path.iterdir()} == {
        "a1_latency",
        "a1_latency_engine",
        "a2_throughput",
    }


def test_without_a_step_record_there_are_no_engine_figures(tmp_path):
    write_run(tmp_path / "runs" / "default-r1", engine_trace(n=30)[0])
    assert main([str(tmp_path / "runs"), "--out", str(tmp_path / "out")]) == 0
    assert {p.stem for p in (tmp_path / "out").iterdir()} == {"fig3a_cdf", "fig3a_tail"}


def test_runs_with_failures_are_left_out_and_said(tmp_path, capsys):
    write_run(tmp_path / "runs" / "default-r1", engine_trace(n=30)[0])
    bad = bench_result([0.1] * 20, [[0.01] * 4] * 20, failed=(3,))
    write_run(tmp_path / "runs" / "sjf-r1", bad, arm="sjf", label="SJF")
    assert main([str(tmp_path / "runs"), "--out", str(tmp_path / "out")]) == 1
    assert "left out sjf-r1: 1 of 20 requests failed" in capsys.readouterr().err


def test_no_usable_run_draws_nothing(tmp_path, capsys):
    bench = bench_result([0.0] * 5, [[]] * 5, errors=["refused"] * 5)
    write_run(tmp_path / "runs" / "default-r1", bench)
    assert main([str(tmp_path / "runs"), "--out", str(tmp_path / "out")]) == 2
    assert "no valid run to draw" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_drawing_again_gives_the_same_bytes(sweep_dir, tmp_path):
    for out in ("one", "two"):
        main([str(sweep_dir), "--out", str(tmp_path / out), "--task", "task2"])
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes(), path.name


# 3A


def test_a_cdf_curve_passes_through_the_percentiles_of_the_data():
    values = np.random.default_rng(0).lognormal(3, 1, 20_000)
    x, y = quantile_curve(values, tail=False)
    assert (np.diff(x) >= 0).all()
    assert (np.diff(y) > 0).all()
    assert np.interp(0.5, y, x) == pytest.approx(np.median(values), rel=0.01)
    x, above = quantile_curve(values, tail=True)
    assert np.interp(0.01, above[::-1], x[::-1]) == pytest.approx(
        np.percentile(values, 99), rel=0.01
    )


def test_a_curve_of_one_value_can_be_drawn():
    for tail in (False, True):
        x, _ = quantile_curve(np.array([5.0]), tail)
        assert set(x) == {5.0}


def test_the_markers_stand_at_the_percentiles_of_the_pooled_repeats(strategies):
    panel = cdf_figure(strategies).axes[0]
    marks = [line for line in panel.lines if line.get_marker() == "o"]
    pooled = np.concatenate([r.kept.ttft_ms for r in strategies if r.info.arm == "default"])
    assert [float(line.get_xdata()[0]) for line in marks] == pytest.approx(
        [np.quantile(pooled, 0.5), np.quantile(pooled, 0.99)]
    )


def test_each_arm_is_in_the_legend_once_and_single_repeats_are_drawn_thin(strategies):
    figure = cdf_figure(strategies)
    assert legend_labels(figure) == ["Default", "Passthrough", "A"]
    thin = [line for line in figure.axes[1].lines if line.get_linewidth() == 0.5]
    assert len(thin) == len(strategies)


def test_axes_are_logarithmic_and_hold_the_slowest_value(strategies):
    for figure in (cdf_figure(strategies), tail_figure(strategies)):
        for panel, worst in zip(
            figure.axes,
            (
                max(r.kept.ttft_ms.max() for r in strategies),
                max(r.kept_gaps_ms.max() for r in strategies),
            ),
            strict=True,
        ):
            assert panel.get_xscale() == "log"
            assert panel.get_xlim()[1] > worst


def test_arms_without_a_record_are_named_below_the_engines_figure(strategies):
    figure = cdf_figure(strategies, ENGINE)
    assert "Default" not in legend_labels(figure)
    assert "No step record: Default." in footer_text(figure)


def test_gaps_of_zero_do_not_break_the_log_axis(tmp_path):
    bench = bench_result([0.1] * 20, [[0.0, 0.02, 0.0]] * 20)
    figure = cdf_figure([load_run(write_run(tmp_path / "a-r1", bench))])
    assert figure.axes[1].get_xlim()[0] >= 0.05


def test_every_figure_says_where_it_comes_from(strategies, sweep_tables):
    figures = [cdf_figure(strategies), tail_figure(strategies), composition_figure(strategies)]
    figures += [latency_figure(*sweep_tables), throughput_figure(*sweep_tables)]
    for figure in figures:
        for part in ("Measured", "Test CPU", "vLLM 0.32.0+cpu", "commit 0123456", "2026-01-02"):
            assert part in footer_text(figure)


def test_up_to_forty_arms_look_different():
    made = looks([f"arm {i}" for i in range(40)])
    assert len({(look.colour, str(look.line)) for look in made.values()}) == 40
    assert len({look.marker for look in list(made.values())[:8]}) == 8


# 3B


def test_steps_are_told_apart_by_what_they_hold(strategies):
    steps = (
        strategies[2].steps.iloc[:4].assign(prefill_tokens=[5, 0, 5, 0], decode_tokens=[0, 5, 5, 0])
    )
    assert step_kinds(steps).tolist() == ["prefill only", "decode only", "mixed", ""]


def test_strategy_a_shows_no_mixed_bar_and_passthrough_does(strategies):
    figure = composition_figure(strategies, seconds=2.0)
    titles = [panel.get_title(loc="left") for panel in figure.axes]
    assert [title.split(":")[0] for title in titles] == ["Passthrough", "A"]
    assert titles[1].startswith("A: 0.0% of")
    bars = [
        [len(c.get_paths()) for c in panel.collections if isinstance(c, PolyCollection)]
        for panel in figure.axes
    ]
    mixed = list(KINDS).index("mixed")
    assert bars[0][mixed] > 0
    assert bars[1][mixed] == 0
    assert bars[1][list(KINDS).index("prefill only")] > 0


def test_the_default_without_a_record_is_explained(strategies):
    footer = footer_text(composition_figure(strategies))
    assert "No step record: Default (Passthrough makes the same decisions)" in footer


def test_without_any_record_there_is_no_step_figure(strategies):
    assert composition_figure([run for run in strategies if run.steps is None]) is None


# A1 and A2


def test_a1_draws_the_medians_and_the_spread_of_the_table(sweep_tables):
    summary, rows, infos = sweep_tables
    panel = latency_figure(summary, rows, infos).axes[1]
    p50, p99 = panel.containers
    assert p50.lines[0].get_xdata().tolist() == [64, 256, 1024]
    assert p50.lines[0].get_ydata().tolist() == summary.itl_p50_ms.tolist()
    assert p99.lines[0].get_ydata().tolist() == summary.itl_p99_ms.tolist()
    bar = p99.lines[2][0].get_segments()[0]
    found = spread(summary.iloc[0], "itl_p99_ms")
    assert bar[:, 1].tolist() == pytest.approx([found.low, found.high])
    assert panel.get_xscale() == panel.get_yscale() == "log"


def test_a1_of_the_engine_draws_other_numbers(sweep_tables):
    summary, rows, infos = sweep_tables
    panel = latency_figure(summary, rows, infos, "engine_").axes[0]
    assert panel.containers[0].lines[0].get_ydata().tolist() == summary.engine_ttft_p50_ms.tolist()
    assert "engine" in panel.get_ylabel()


def test_a2_starts_at_zero_and_marks_saturation_and_the_offered_load(sweep_tables):
    figure = throughput_figure(*sweep_tables)
    panel = figure.axes[0]
    assert panel.get_ylim()[0] == 0
    assert legend_labels(figure) == [
        "output tokens/s",
        "offered: 14 requests/s x 64 tokens",
        "within 3% of the best from X=64 on",
    ]
    level = next(line for line in panel.lines if line.get_label().startswith("offered"))
    assert set(level.get_ydata()) == {14 * 64}


# DLA


SIMULATED = pd.DataFrame(
    {
        "arm": ["default", "a"],
        "simulated_e2e_mean_ms": [1500.0, 900.0],
        "simulated_preemptions": [30, 7],
    }
)


def markers(panel, marker):
    return [line for line in panel.lines if line.get_marker() == marker]


def test_dla_shows_measured_and_simulated_of_the_same_arm(strategies):
    figure = dla_figure(strategies, SIMULATED)
    cdf, jct, preempted = figure.axes
    arms = [label.get_text() for label in jct.get_yticklabels()]
    assert arms == ["Default", "Passthrough", "A"]
    dots = {int(line.get_ydata()[0]): line.get_xdata() for line in markers(jct, ".")}
    for row, label in enumerate(arms):
        own = [run for run in strategies if run.info.label == label]
        means = [run.kept.e2e_ms.mean() / 1000 for run in own]
        assert list(dots[row]) == pytest.approx(means)
        assert jct.patches[row].get_width() == pytest.approx(np.median(means))
    diamonds = [float(line.get_xdata()[0]) for line in markers(jct, "D")]
    assert diamonds[0] == 1.5
    assert np.isnan(diamonds[1]), "the simulator has nothing of Passthrough here"
    assert diamonds[2] == 0.9
    assert [float(line.get_xdata()[0]) for line in markers(preempted, "D")][::2] == [30, 7]
    pooled = [line for line in cdf.lines if line.get_linewidth() > 1]
    assert len(pooled) == 3
    assert "simulated" in legend_labels(figure)
    assert "SIMULATED diamonds" in footer_text(figure)


def test_dla_without_a_simulation_says_nothing_of_one(strategies):
    figure = dla_figure(strategies)
    assert "SIMULATED" not in footer_text(figure)
    assert "simulated" not in legend_labels(figure)


def test_the_task_dla_draws_its_own_figures(strategies, tmp_path):
    for run in strategies:
        raw = run.info.raw | {"task": "dla"}
        folder = tmp_path / "runs" / run.info.folder.name
        folder.mkdir(parents=True)
        for file in run.info.folder.iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
        (folder / "run.json").write_text(json.dumps(raw))
    out = tmp_path / "out"
    out.mkdir()
    SIMULATED.to_csv(out / "simulated.csv", index=False)
    assert main([str(tmp_path / "runs"), "--out", str(out), "--task", "dla"]) == 0
    assert {path.stem for path in out.glob("*.png")} == {"dla_jct", "dla_steps"}


@pytest.mark.parametrize(("low", "high"), [(0.84, 1.08), (0.5, 1.7), (3.0, 90.0), (0.2, 4e4)])
def test_a_log_axis_has_labels_to_read_it_by(low, high):
    _, axes = new_figure(1, 1, 4.0, 3.0)
    axes[0, 0].set_ylim(low, high)
    log_axis(axes[0, 0], "y")
    labelled = [tick for tick in axes[0, 0].get_yticks() if low <= tick <= high]
    assert 3 <= len(labelled) <= 8

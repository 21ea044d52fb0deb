"""The report's tables of simulations, and of simulations beside measurements."""

from __future__ import annotations

import math
from collections.abc import Callable

import pandas as pd

from experiments.report import relative
from lab3.report.labels import DLA_LABELS, label
from lab3.report.phrases import change
from lab3.report.results import DLA, TASK3, Results
from lab3.summary import within_noise
from lab3.text_table import NOTHING, Cell, Table, number

# vllm-hust-dla 0.1.0: what, metric, published change, and where it is found here: predictions and
# arm of the simulation, arm of the live comparison.
PUBLISHED = (
    ("只改 victim：JCT P50", "e2e_p50_ms", "−23%", "oracle", "remaining+off", "dla_victim"),
    ("只改 victim：抢占", "preemptions", "−48%", "oracle", "remaining+off", "dla_victim"),
    ("只改 victim：重算", "recompute_tax", "−56%", "oracle", "remaining+off", "dla_victim"),
    ("victim + 准入：JCT P50", "e2e_p50_ms", "−47%", "oracle", "remaining+reserve", "dla"),
    ("victim + 准入：抢占", "preemptions", "−81%", "oracle", "remaining+reserve", "dla"),
    ("victim + 准入：重算", "recompute_tax", "−77%", "oracle", "remaining+reserve", "dla"),
    ("噪声 σ = 1×L：JCT P50", "e2e_p50_ms", "−34…−47%", "noise:1", "remaining+reserve", None),
    ("高估 1.5 倍：JCT P50", "e2e_p50_ms", "无影响", "bias:1.5", "remaining+reserve", None),
)
POINTS = {"rate 8": "8/s", "rate 16": "16/s", "load 1.0": "容量", "load 1.3": "1.3 倍容量"}
SHOWN_POINTS = {name: POINTS[name] for name in ("rate 8", "load 1.0")}
SHOWN_SIM = (
    ("ttft_p50_ms", "TTFT P50"),
    ("itl_p99_ms", "ITL P99"),
    ("max_gap_p99_ms", "最长停顿 P99"),
    ("e2e_mean_ms", "E2E 均值"),
    ("output_tokens_per_s", "吞吐"),
)


def collect(results: Results) -> dict[str, tuple[Table, str, str]]:
    """By name: table, file, kind of source."""
    dla, tasks = results.dla_experiment, results.simulated("tasks")
    live = f"{DLA}/summary.csv, results/sim/dla.csv"
    return {
        "validation": (
            validation(results.simulated("validation_gpu")),
            "sim/validation_gpu.csv",
            "both",
        ),
        "validation-live": (validation_live(results), "sim/validation_live.csv", "both"),
        "dla-simulated": (dla_simulated(results), f"{DLA}/simulated.csv", "both"),
        "published": (published(results), live, "both"),
        "sim-dla": (sim_dla(dla), "sim/dla.csv", "simulated"),
        "sim-predictions": (sim_predictions(dla), "sim/dla.csv", "simulated"),
        "sim-tasks": (sim_tasks(tasks), "sim/tasks.csv", "simulated"),
        "sim-budget": (sim_budget(tasks), "sim/tasks.csv", "simulated"),
    }


def sim_tasks(frame: pd.DataFrame) -> Table:
    """Strategies against the default: both engines, both kinds of lengths, at SHOWN_POINTS."""
    frame = frame[(frame.budget == "2048") & frame.point.isin(SHOWN_POINTS)]
    cell = ("engine", "lengths", "point")
    found = {metric: relative(frame, cell, metric) for metric, _ in SHOWN_SIM}
    rows = [
        (
            Cell(key[0].split(" on ")[0]),
            Cell({"fixed": "定长", "varied": "变长"}[key[1]]),
            Cell(SHOWN_POINTS[key[2]]),
            Cell(key[3]),
            *(Cell(change(found[metric].loc[key, "mean"])) for metric, _ in SHOWN_SIM),
        )
        for key in found["ttft_p50_ms"].index
        if key[3] != "default"
    ]
    heads = (("模型", ""), ("长度", ""), ("到达率", ""), ("策略", ""))
    return Table("sim-tasks", (*heads, *((name, "") for _, name in SHOWN_SIM)), tuple(rows))


def sim_budget(frame: pd.DataFrame) -> Table:
    """Task 2 on the simulated engines: mean over the seeds."""
    frame = frame[(frame.arm == "default") & (frame.lengths == "fixed")]
    metrics: tuple[tuple[str, str, str, Callable[[float], str]], ...] = (
        ("ttft_p50_ms", "TTFT P50", "ms", number),
        ("ttft_p99_ms", "TTFT P99", "ms", number),
        ("itl_p50_ms", "ITL P50", "ms", number),
        ("itl_p99_ms", "ITL P99", "ms", number),
        ("output_tokens_per_s", "吞吐", "tokens/s", number),
    )
    frame = frame.assign(x=frame.budget.astype(int))
    swept = frame.groupby(["engine", "point"], sort=False).x.transform("nunique") > 1
    names = [name for name, *_ in metrics]
    means = frame[swept].groupby(["engine", "point", "x"], sort=True)[names].mean()
    rows = [
        (
            Cell(engine.split(" on ")[0]),
            Cell(POINTS.get(point, point)),
            Cell(f"{x:,}"),
            *(Cell(write(row[name])) for name, _, _, write in metrics),
        )
        for (engine, point, x), row in means.iterrows()
    ]
    heads = (("模型", ""), ("到达率", ""), ("X", ""))
    headers = (*heads, *((name, unit) for _, name, unit, _ in metrics))
    return Table("sim-budget", headers, tuple(rows))


def sim_dla(frame: pd.DataFrame) -> Table:
    """Mean JCT of every arm, load 1, scarce KV, oracle: a column per lengths and prefix caching."""
    base = frame[(frame.load == "1.0") & (frame.kv == "scarce") & (frame.predictions == "oracle")]
    kinds = list(dict.fromkeys(base.lengths))
    columns = [(kind, caching) for kind in kinds for caching in ("False", "True")]
    found = relative(base, ("lengths", "caching"), "e2e_mean_ms")
    arms = [arm for arm in dict.fromkeys(base.arm) if arm != "default"]
    rows = [
        (Cell(arm), *(_cell_of(found, (kind, caching, arm)) for kind, caching in columns))
        for arm in arms
    ]
    heads = ((kind, f"缓存{'开' if caching == 'True' else '关'}") for kind, caching in columns)
    return Table("sim-dla", (("策略", ""), *heads), tuple(rows))


def sim_predictions(frame: pd.DataFrame) -> Table:
    """Mean JCT under wrong predictions, load 1, scarce KV, caching off: a row per lengths, arm."""
    base = frame[(frame.load == "1.0") & (frame.kv == "scarce") & (frame.caching == "False")]
    kinds = list(dict.fromkeys(base.predictions))
    found = relative(base, ("lengths", "predictions"), "e2e_mean_ms")
    wrong = base[base.predictions != "oracle"]
    arms = [arm for arm in dict.fromkeys(wrong.arm) if arm != "default"]
    rows = [
        (Cell(lengths), Cell(arm), *(_cell_of(found, (lengths, kind, arm)) for kind in kinds))
        for lengths in dict.fromkeys(base.lengths)
        for arm in arms
    ]
    headers = (("长度", ""), ("策略", ""), *((kind, "") for kind in kinds))
    return Table("sim-predictions", headers, tuple(rows))


def published(results: Results) -> Table:
    """What DLA's authors published, and the same change here: live and, per lengths, simulated."""
    frame = results.dla_experiment
    base = frame[(frame.load == "1.0") & (frame.kv == "scarce") & (frame.caching == "False")]
    kinds = list(dict.fromkeys(base.lengths))
    rows = []
    for what, metric, claimed, predictions, simulated_arm, live_arm in PUBLISHED:
        live = Cell(NOTHING) if live_arm is None else live_change(results, live_arm, metric)
        found = relative(base[base.predictions == predictions], ("lengths",), metric)
        cells = [live, *(_cell_of(found, (kind, simulated_arm)) for kind in kinds)]
        rows.append((Cell(what), Cell(claimed), *cells))
    headers = (("主张", ""), ("公布值", "离线块池"), ("本机服务", "实测"))
    return Table("published", (*headers, *((kind, "模拟") for kind in kinds)), tuple(rows))


def live_change(results: Results, arm: str, metric: str) -> Cell:
    """An arm's change on the live server; "~" marks what is within noise.

    Against the default, or against Passthrough for what vLLM's default does not record.
    """
    own, base, control = (
        results.spread(DLA, name, metric) for name in (arm, "default", "passthrough")
    )
    base = control if math.isnan(base.median) else base
    if not base.median or math.isnan(base.median):
        return Cell(NOTHING)
    return Cell(("~" if within_noise(own, base) else "") + change(own.median / base.median - 1))


def dla_simulated(results: Results) -> Table:
    """The live comparison's ratios to the default beside what the calibrated simulator says."""
    rows = results.dla_simulated.drop(index="default")
    shown = (("e2e_mean_ms", "JCT 均值"), ("e2e_p50_ms", "JCT P50"), ("e2e_p99_ms", "JCT P99"))
    sources = (("measured", "实测"), ("simulated", "模拟"))
    headers = (("策略", ""), *((name, word) for _, name in shown for _, word in sources))
    cells = [
        (
            Cell(DLA_LABELS.get(row.arm, row.label)),
            *(
                Cell(f"{row[f'{source}_ratio_{metric}']:.2f}x")
                for metric, _ in shown
                for source, _ in sources
            ),
        )
        for _, row in rows.iterrows()
    ]
    return Table("dla-simulated", headers, tuple(cells))


def validation(frame: pd.DataFrame) -> Table:
    """Measured and simulated values side by side, with the error."""
    headers = (("指标", ""), ("统计量", ""), ("实测", "s"), ("模拟", "s"), ("误差", ""))
    rows = [
        (
            Cell(row.metric),
            Cell({"mean": "均值"}.get(row.statistic, row.statistic)),
            Cell(f"{row.measured_s:.3g}"),
            Cell(f"{row.simulated_s:.3g}"),
            Cell(f"{100 * row.error:+.1f}%".replace("-", "−")),
        )
        for row in frame.itertuples()
    ]
    return Table("validation", headers, tuple(rows))


LIVE_METRICS = (
    ("ttft_mean_ms", "TTFT 均值"),
    ("ttft_p99_ms", "TTFT P99"),
    ("tpot_mean_ms", "TPOT 均值"),
    ("tpot_p99_ms", "TPOT P99"),
    ("e2e_mean_ms", "E2E 均值"),
    ("step_mean_ms", "步时均值"),
)


def validation_live(results: Results) -> Table:
    """Measured and simulated milliseconds of each arm, with the error."""
    frame = results.validation_live
    arms = list(frame.index.unique("arm"))
    rows = []
    for metric, word in LIVE_METRICS:
        cells = []
        for arm in arms:
            own = frame.loc[(metric, arm)]
            error = change(own.simulated / own.measured - 1)
            cells.append(Cell(error, f"{number(own.measured)} / {number(own.simulated)}"))
        rows.append((Cell(word), *cells))
    headers = tuple((label(TASK3, arm), "实测 / 模拟，ms") for arm in arms)
    return Table("validation-live", (("误差", ""), *headers), tuple(rows))


def _cell_of(found: pd.DataFrame, key: tuple[str, ...]) -> Cell:
    return _changed(found.loc[key]) if key in found.index else Cell(NOTHING)


def _changed(row: pd.Series) -> Cell:
    mean, low, high = change(row["mean"]), change(row.low), change(row.high)
    return Cell(mean, "" if low == high == mean else f"{low}…{high}")

"""Every number that the report's text may name: name -> text, all of it read from result files.

Names: ``task3-cpu.prefill_first.itl_p99_ms`` (median), ``....range`` (smallest-largest over the
repeats), ``....vs`` (against the default, in words), ``....ratio``; ``task2-cpu.512.ttft_p50_ms``
likewise, against the smallest X; ``task1-cpu.vllm.total_s``; ``sim-tasks.ENGINE.LENGTHS.LOAD.ARM.
METRIC`` (change against the default) and the like for the other simulations.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from experiments.report import relative
from lab3 import profile
from lab3.report.phrases import change, compared, direction, theory, times, trend
from lab3.report.results import (
    MEASURED,
    STRATEGIES,
    TASK1,
    TASK1_REAL,
    TASK2,
    Results,
    point,
)
from lab3.summary import Spread, spread
from lab3.sweep import latency_trends, recommended_x, request_rate, saturation_x
from lab3.task1.job import EOS, FIXED
from lab3.text_table import count, number, share

MIB = 2**20
LATENCIES = ("ttft_p50_ms", "ttft_p99_ms", "itl_p50_ms", "itl_p99_ms")
SIMULATED_METRICS = (
    "ttft_p50_ms",
    "ttft_p99_ms",
    "itl_p99_ms",
    "max_gap_p99_ms",
    "e2e_mean_ms",
    "e2e_p50_ms",
    "e2e_p99_ms",
    "output_tokens_per_s",
    "preemptions",
    "recompute_tax",
)


def collect(results: Results) -> dict[str, str]:
    """All facts by name."""
    found: dict[str, str] = {}
    for name in (TASK1, TASK1_REAL):
        found |= dict(task1(results, name))
    for name in STRATEGIES:
        found |= dict(strategies(results, name))
    for name in MEASURED:
        found |= dict(provenance(results, name))
    found |= dict(sweep(results))
    found |= dict(profiles())
    return found | dict(simulations(results))


def profiles() -> Iterator[tuple[str, str]]:
    """The values of the profiles that the measurements ran under."""
    for name in ("cpu", "gpu"):
        values = profile.load(name, {"PATH": os.environ["PATH"]})
        yield from ((f"profile.{name}.{key}", value) for key, value in values.items())


def written(metric: str, value: float) -> str:
    """A metric as the tables write it."""
    if metric.endswith(("_share", "_rate", "_tax")):
        return share(value)
    return count(value) if metric in ("preemptions", "recomputed_tokens") else number(value)


def provenance(results: Results, name: str) -> Iterator[tuple[str, str]]:
    """Where a result was measured."""
    parts = results.provenance(name)
    for key in ("vLLM", "model", "profile", "commit"):
        found = [part.removeprefix(f"{key} ") for part in parts if part.startswith(f"{key} ")]
        yield f"{name}.{key.lower()}", Path(found[0]).name if found else "–"
    yield f"{name}.hardware", parts[0]
    yield f"{name}.day", parts[-1]
    load = [part for part in parts if "requests" in part]
    yield f"{name}.load", load[0] if load else "–"


def task1(results: Results, name: str) -> Iterator[tuple[str, str]]:
    """Task 1's rows, ratios of throughput, and the pass in which answers end at eos."""
    rows = results.task1(name)
    for (mode, plan), row in rows.iterrows():
        key = f"{name}.{plan}" if mode == FIXED else f"{name}.{mode}.{plan}"
        for field in ("total_s", "output_tokens_per_s", "latency_p50_s", "latency_p99_s"):
            yield f"{key}.{field}", number(row[field])
        for field in ("padding_share", "idle_row_share", "kv_waste_share"):
            yield f"{key}.{field}", share(row[field])
        yield f"{key}.kv_peak_mib", number(row.kv_peak_bytes / MIB)
        bytes_per_token = row.kv_peak_bytes / row.kv_peak_tokens
        yield f"{key}.kv_held_mib", number(row.kv_held_tokens * bytes_per_token / MIB)
        yield f"{key}.kv_held_tokens", count(row.kv_held_tokens)
        yield f"{key}.kv_bytes_per_token", count(bytes_per_token)
        yield f"{key}.batch", count(row.batch)
        yield f"{key}.output_tokens", count(row.output_tokens)
    for mode in (FIXED, EOS):
        for plan, other in _pairs(rows, mode):
            ratio = _speed(rows, mode, plan) / _speed(rows, mode, other)
            prefix = name if mode == FIXED else f"{name}.{mode}"
            yield f"{prefix}.{plan}/{other}", times(ratio)
    static, vllm = rows.loc[(FIXED, "hf-static")], rows.loc[(FIXED, "vllm")]
    fitting = int(static.kv_held_tokens / vllm.kv_held_tokens * vllm.batch)
    yield f"{name}.fitting", count(fitting)
    identical, compared_texts = results.identical_texts(name)
    yield f"{name}.identical", f"{identical}/{compared_texts}"


def _pairs(rows: pd.DataFrame, mode: str) -> Iterator[tuple[str, str]]:
    plans = [plan for own, plan in rows.index if own == mode]
    yield from ((plan, other) for plan in plans for other in plans if plan != other)


def _speed(rows: pd.DataFrame, mode: str, plan: str) -> float:
    return rows.loc[(mode, plan)].output_tokens_per_s


def strategies(results: Results, name: str) -> Iterator[tuple[str, str]]:
    """Every metric of every arm, and against the default."""
    rows = results.strategies(name)
    for metric in (column.removesuffix("_min") for column in rows if column.endswith("_min")):
        base = spread(rows.loc["default"], metric)
        for arm, row in rows.iterrows():
            yield from _numbers(f"{name}.{arm}.{metric}", metric, spread(row, metric), base)
    first = rows.iloc[0]
    yield f"{name}.repeats", count(rows.repeats.min())
    for key, value in point(first).items():
        yield f"{name}.{key}", str(value)


SENTENCE = (
    ("TTFT P50", "ttft_p50_ms"),
    ("TTFT P99", "ttft_p99_ms"),
    ("ITL P99", "itl_p99_ms"),
    ("最长停顿 P99", "max_gap_p99_ms"),
    ("E2E 均值", "e2e_mean_ms"),
    ("E2E P99", "e2e_p99_ms"),
    ("吞吐", "output_tokens_per_s"),
    ("抢占", "preemptions"),
    ("重算 token", "recomputed_tokens"),
)


def sentences(results: Results, name: str) -> list[tuple[list[str], str]]:
    """(arms, what differs from the default beyond noise); those without a difference together."""
    rows = results.strategies(name)
    found: list[tuple[list[str], str]] = []
    same: list[str] = []
    for arm in rows.index.drop(["default"]):
        parts = []
        for word, metric in SENTENCE:
            own, base = (results.spread(name, one, metric) for one in (arm, "default"))
            if direction(own, base, metric) in ("better", "worse"):
                parts.append(f"{word} {compared(own, base, metric)}")
        if parts:
            found.append(([arm], f"{'，'.join(parts)}。"))
        else:
            same.append(arm)
    return [*found, (same, "与默认没有超出噪声的差别。")] if same else found


def _numbers(key: str, metric: str, own: Spread, base: Spread) -> Iterator[tuple[str, str]]:
    yield key, written(metric, own.median)
    yield f"{key}.range", f"{written(metric, own.low)}–{written(metric, own.high)}"
    yield f"{key}.vs", compared(own, base, metric)
    known = base.median and not math.isnan(base.median)
    yield f"{key}.ratio", f"{own.median / base.median:.2f}" if known else "–"


def sweep(results: Results) -> Iterator[tuple[str, str]]:
    """Task 2: every metric at every X, against the smallest X; saturation and recommendation."""
    rows = results.sweep
    for metric in (column.removesuffix("_min") for column in rows if column.endswith("_min")):
        base = spread(rows.iloc[0], metric)
        for x, row in rows.iterrows():
            yield from _numbers(f"{TASK2}.{x}.{metric}", metric, spread(row, metric), base)
    yield f"{TASK2}.smallest", count(rows.x.min())
    yield f"{TASK2}.largest", count(rows.x.max())
    yield f"{TASK2}.saturation", count(saturation_x(rows))
    yield f"{TASK2}.rate", number(request_rate(rows))
    yield f"{TASK2}.repeats", count(rows.repeats.min())
    for metric in LATENCIES:
        yield f"{TASK2}.lowest.{metric}", count(rows.x[rows[metric].idxmin()])
    trends = dict(zip(LATENCIES, latency_trends(rows), strict=True))
    for metric, found in trends.items():
        yield f"{TASK2}.trend.{metric}", trend(found)
    for name, expected in (("ttft", "falls"), ("itl", "rises")):
        own = [found for metric, found in trends.items() if metric.startswith(name)]
        yield f"{TASK2}.theory.{name}", theory(own, expected)
    best = rows.output_tokens_per_s.max()
    yield f"{TASK2}.best_tokens_per_s", number(best)
    yield f"{TASK2}.throughput_gain", f"{best / rows.output_tokens_per_s.iloc[0]:.2f}"
    chosen = recommended_x(rows)
    yield f"{TASK2}.recommended", "–" if chosen is None else count(chosen)


def simulations(results: Results) -> Iterator[tuple[str, str]]:
    """Changes against the default, means over the seeds; errors of the validation."""
    tasks = results.simulated("tasks")
    cell = ("engine", "lengths", "point")
    yield from _changes("sim-tasks", tasks[tasks.budget == "2048"], cell)
    cell = ("lengths", "load", "kv", "caching", "predictions")
    yield from _changes("sim-dla", results.dla_experiment, cell)
    for arm, row in results.dla_simulated.iterrows():
        for source in ("measured", "simulated"):
            yield f"dla-{source}.{arm}", f"{row[f'{source}_ratio_e2e_mean_ms']:.2f} 倍"
    for row in results.simulated("validation_gpu").itertuples():
        error = f"{100 * row.error:+.1f}%".replace("-", "−")
        yield f"validation.{row.metric}.{row.statistic}", error
    varied = results.simulated("validation_gpu_assumptions").filter(like="P50")
    yield "validation.worst", f"{100 * varied.abs().max().max():.0f}%"


def _changes(prefix: str, frame: pd.DataFrame, cell: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for metric in SIMULATED_METRICS:
        if metric not in frame:
            continue
        for key, row in relative(frame, cell, metric).iterrows():
            name = f"{prefix}.{'.'.join(map(str, key))}.{metric}"
            yield name, change(row["mean"])
            yield f"{name}.range", f"{change(row.low)}…{change(row.high)}"
            yield f"{name}.ratio", f"{1 + row['mean']:.2f}"

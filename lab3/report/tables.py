"""The report's tables: name -> title-less rows for typst, with the file and the kind of source."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

from experiments.common import relative
from lab3 import table
from lab3.report.phrases import change
from lab3.report.results import (
    MEASURED,
    STRATEGIES,
    TASK1,
    TASK1_REAL,
    TASK2,
    Results,
)
from lab3.task1.job import FIXED
from lab3.text_table import NOTHING, Cell, Table, number, share

MIB = 2**20
LABELS = {
    "default": "vLLM V1 默认",
    "passthrough": "Passthrough（对照）",
    "prefill_first": "A: Prefill-First",
    "sjf": "B1: SJF",
    "decode_first": "B: Pure Decode-First",
    "fair_share": "B2: Fair-Share",
    "adaptive": "B3: Adaptive Chunk",
    "dla": "DLA",
    "dla_srpt": "DLA-SRPT",
}
PLANS = {
    "hf-serial": "transformers 串行",
    "hf-static": "transformers 静态 batching",
    "hf-static-sorted": "静态 batching，按长度排序",
    "vllm": "vLLM 离线",
}
LAB_SWEEP = (*table.SWEEP[:4], table.SWEEP[6])
MORE_SWEEP = (*table.SWEEP[4:6], *table.SWEEP[7:], *table.GOODPUT)
MORE = tuple(
    column
    for column in table.DETAILS
    if column.metric
    in {
        "e2e_mean_ms",
        "e2e_p99_ms",
        "max_gap_p99_ms",
        "max_gap_max_ms",
        "preemptions",
        "recomputed_tokens",
        "mixed_step_share",
        "tiny_gap_share",
    }
)
DLA_CELL = ("lengths", "load", "kv", "caching", "predictions")


def collect(results: Results) -> dict[str, dict[str, Any]]:
    """All tables by name, as JSON."""
    found = {"environment": (environment(results), "各 table.md", "measured")}
    for name in (TASK1, TASK1_REAL):
        found[name] = (task1(results.task1(name)), f"{name}/task1.csv", "measured")
        found[f"{name}-more"] = (task1_more(results.task1(name)), f"{name}/task1.csv", "measured")
    source = f"{TASK2}/summary.csv"
    found["task2"] = (sweep(results, LAB_SWEEP), source, "measured")
    found["task2-more"] = (sweep(results, MORE_SWEEP), source, "measured")
    for name in STRATEGIES:
        source = f"{name}/summary.csv"
        found[name] = (strategies(results, name, table.MAIN), source, "measured")
        found[f"{name}-more"] = (strategies(results, name, MORE), source, "measured")
        found[f"{name}-ratio"] = (ratios(results, name), source, "measured")
    found["sim-tasks"] = (sim_tasks(results.simulated("tasks")), "sim/tasks.csv", "simulated")
    found["sim-budget"] = (sim_budget(results.simulated("tasks")), "sim/tasks.csv", "simulated")
    dla = results.simulated("dla")
    found["sim-dla"] = (sim_dla(dla), "sim/dla.csv", "simulated")
    found["sim-predictions"] = (sim_predictions(dla), "sim/dla.csv", "simulated")
    found["sim-map"] = (sim_map(results.simulated("map")), "sim/map.csv", "simulated")
    found["validation"] = (
        validation(results.simulated("validation_gpu")),
        "sim/validation_gpu.csv",
        "both",
    )
    return {name: as_json(*entry) for name, entry in found.items()}


def as_json(made: Table, source: str, kind: str) -> dict[str, Any]:
    """``kind``: measured, simulated, or both (a comparison of the two)."""
    rows = [[[cell.value, cell.extra] for cell in row] for row in made.rows]
    return {"headers": made.headers, "rows": rows, "source": f"results/{source}", "kind": kind}


def environment(results: Results) -> Table:
    """Where each result was measured."""
    heads = ("机器", "vLLM", "模型", "profile", "负载", "commit", "日期")
    rows = []
    for name in MEASURED:
        parts = results.provenance(name)
        known = dict.fromkeys(("vLLM", "model", "profile", "requests", "commit"), NOTHING)
        for part in parts[1:-1]:
            key = next((key for key in known if part.startswith(f"{key} ")), None)
            if key:
                known[key] = part.removeprefix(f"{key} ").split("/")[-1]
            elif "requests" in part:
                known["requests"] = part.replace(" requests of ", " x ").replace(" tokens", "")
        values = [parts[0], *known.values(), parts[-1]]
        order = (0, 1, 2, 3, 4, 5, 6)
        rows.append((Cell(name), *(Cell(values[i]) for i in order)))
    return Table("environment", (("实验", ""), *((head, "") for head in heads)), tuple(rows))


def task1(rows: pd.DataFrame) -> Table:
    """The lab's own table."""
    headers = (
        ("方案", ""),
        ("总耗时", "s"),
        ("吞吐", "tokens/s"),
        ("相对串行", "倍"),
        ("峰值 KV cache", "MiB"),
        ("备注", ""),
    )
    fixed = rows.loc[FIXED]
    serial = fixed.loc["hf-serial"].output_tokens_per_s
    cells = [
        (
            Cell(PLANS[plan]),
            Cell(number(row.total_s)),
            Cell(number(row.output_tokens_per_s)),
            Cell(number(row.output_tokens_per_s / serial)),
            Cell(number(row.kv_peak_bytes / MIB)),
            Cell(note(plan, row)),
        )
        for plan, row in fixed.iterrows()
    ]
    return Table("task1", headers, tuple(cells))


def note(plan: str, row: pd.Series) -> str:
    """A plan's remark in the lab's table."""
    if plan == "vllm":
        return "连续批处理，64 条同时提交" if row.batch == 64 else "连续批处理"
    return "逐条 generate" if plan == "hf-serial" else f"batch={row.batch}"


def task1_more(rows: pd.DataFrame) -> Table:
    """Latency and waste, of the pass with equal lengths and the one that stops at eos."""
    headers = (
        ("方案", ""),
        ("回答", ""),
        ("延迟 P50", "s"),
        ("延迟 P99", "s"),
        ("填充", "占 prompt"),
        ("空转行", "占 decode"),
        ("KV 浪费", "占已占用"),
        ("峰值内存", "MiB"),
    )
    cells = [
        (
            Cell(PLANS[plan]),
            Cell("定长" if mode == FIXED else "遇 eos 停"),
            Cell(number(row.latency_p50_s)),
            Cell(number(row.latency_p99_s)),
            *(
                Cell(share(row[name]))
                for name in ("padding_share", "idle_row_share", "kv_waste_share")
            ),
            Cell(number(row.peak_memory_bytes / MIB)),
        )
        for (mode, plan), row in rows.iterrows()
    ]
    return Table("task1-more", headers, tuple(cells))


def sweep(results: Results, columns: Sequence[table.Column]) -> Table:
    """Task 2's rows, an X each."""
    rows = results.sweep
    known = [column for column in columns if column.metric in rows]
    return table.metric_table("task2", "X", rows, [f"{x:,}" for x in rows.x], known)


def strategies(results: Results, name: str, columns: Sequence[table.Column]) -> Table:
    """A comparison's arms with medians and ranges."""
    rows = results.strategies(name)
    return table.metric_table(name, "策略", rows, labels(rows), columns)


def labels(rows: pd.DataFrame) -> list[str]:
    """Chinese names of arms; an arm of other tasks keeps its own label."""
    return [LABELS.get(row.arm, row.label) for row in rows.itertuples()]


def ratios(results: Results, name: str) -> Table:
    """Each arm's medians over the default's; "~" marks what is within noise."""
    rows = results.strategies(name)
    made = table.ratio_table(rows, labels(rows), "default", table.COMPARED)
    if made is None:
        return Table(name, (("策略", ""),), ())
    return dataclasses.replace(made, headers=(("策略", ""), *made.headers[1:]))


SHOWN_SIM = (
    ("ttft_p50_ms", "TTFT P50"),
    ("itl_p99_ms", "ITL P99"),
    ("max_gap_p99_ms", "最长停顿 P99"),
    ("e2e_mean_ms", "E2E 均值"),
    ("output_tokens_per_s", "吞吐"),
)


def sim_tasks(frame: pd.DataFrame) -> Table:
    """Strategies against the default at capacity (load 1), both engines, both kinds of lengths."""
    frame = frame[(frame.budget == "2048") & (frame.load == "1.0")]
    cell = ("engine", "lengths")
    found = {metric: relative(frame, cell, metric) for metric, _ in SHOWN_SIM}
    rows = [
        (
            Cell(key[0].split(" on ")[0]),
            Cell({"fixed": "定长", "varied": "变长"}[key[1]]),
            Cell(key[2]),
            *(_changed(found[metric].loc[key]) for metric, _ in SHOWN_SIM),
        )
        for key in found["ttft_p50_ms"].index
        if key[2] != "default"
    ]
    headers = (("模型", ""), ("长度", ""), ("策略", ""), *((name, "") for _, name in SHOWN_SIM))
    return Table("sim-tasks", headers, tuple(rows))


def sim_budget(frame: pd.DataFrame) -> Table:
    """Task 2 at capacity on the simulated engines: mean over the seeds."""
    frame = frame[(frame.arm == "default") & (frame.lengths == "fixed") & (frame.load == "1.0")]
    metrics: tuple[tuple[str, str, str, Callable[[float], str]], ...] = (
        ("ttft_p50_ms", "TTFT P50", "ms", number),
        ("ttft_p99_ms", "TTFT P99", "ms", number),
        ("itl_p50_ms", "ITL P50", "ms", number),
        ("itl_p99_ms", "ITL P99", "ms", number),
        ("output_tokens_per_s", "吞吐", "tokens/s", number),
    )
    frame = frame.assign(x=frame.budget.astype(int))
    means = frame.groupby(["engine", "x"])[[m[0] for m in metrics]].mean()
    rows = [
        (
            Cell(engine.split(" on ")[0]),
            Cell(f"{x:,}"),
            *(Cell(write(row[name])) for name, _, _, write in metrics),
        )
        for (engine, x), row in means.iterrows()
    ]
    headers = (("模型", ""), ("X", ""), *((name, unit) for _, name, unit, _ in metrics))
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


def sim_map(frame: pd.DataFrame) -> Table:
    """Which policy wins where."""
    headers = (
        ("长度", ""),
        ("KV", ""),
        ("负载", ""),
        ("默认的等待队列", "请求"),
        ("KV 峰值", ""),
        ("JCT 均值最低", ""),
        ("最长停顿最小", ""),
    )
    rows = [
        (
            Cell(row.lengths),
            Cell({"scarce": "紧张", "ample": "充足"}[row.kv]),
            Cell(str(row.load)),
            Cell(number(row.waiting_mean)),
            Cell(share(row.kv_peak_share)),
            *(Cell(_winner(row, metric)) for metric in ("e2e_mean_ms", "max_gap_p99_ms")),
        )
        for _, row in frame.iterrows()
    ]
    return Table("sim-map", headers, tuple(rows))


def _winner(row: pd.Series, metric: str) -> str:
    name = row[f"best_{metric}"]
    return "无" if name == "no clear winner" else f"{name} {change(row[f'change_{metric}'])}"


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


def _cell_of(found: pd.DataFrame, key: tuple[str, ...]) -> Cell:
    return _changed(found.loc[key]) if key in found.index else Cell(NOTHING)


def _changed(row: pd.Series) -> Cell:
    mean, low, high = change(row["mean"]), change(row.low), change(row.high)
    return Cell(mean, "" if low == high == mean else f"{low}…{high}")

"""The report's tables: name -> title-less rows for typst, with the file and the kind of source."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pandas as pd

from experiments.report import lies_table
from lab3 import table
from lab3.report import simulated
from lab3.report.labels import DLA_LABELS, label
from lab3.report.results import (
    DLA,
    DLA_MORE,
    LIARS,
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

COLUMNS = dict.fromkeys((DLA, *DLA_MORE), (table.DLA, table.DLA_DETAILS, table.DLA_COMPARED))


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
        main, more, compared = COLUMNS.get(name, (table.MAIN, MORE, table.COMPARED))
        found[name] = (strategies(results, name, main), source, "measured")
        found[f"{name}-more"] = (strategies(results, name, more), source, "measured")
        found[f"{name}-ratio"] = (ratios(results, name, compared), source, "measured")
    found["dla-liars-who"] = (liars(results.liars), f"{LIARS}/liars.csv", "measured")
    found |= simulated.collect(results)
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
        return f"连续批处理，{row.batch} 条同时提交"
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
    known = [c for c in columns if c.metric in rows and rows[c.metric].notna().any()]
    return table.metric_table("task2", "X", rows, [f"{x:,}" for x in rows.x], known)


def strategies(results: Results, name: str, columns: Sequence[table.Column]) -> Table:
    """A comparison's arms with medians and ranges."""
    rows = results.strategies(name)
    return table.metric_table(name, "策略", rows, labels(name, rows), columns)


def labels(name: str, rows: pd.DataFrame) -> list[str]:
    """Names of a comparison's arms, in order."""
    return [label(name, arm) for arm in rows.arm]


def ratios(results: Results, name: str, columns: Sequence[table.Column]) -> Table:
    """Each arm's medians over the default's; "~" marks what is within noise."""
    rows = results.strategies(name)
    made = table.ratio_table(rows, labels(name, rows), "default", columns)
    if made is None:
        return Table(name, (("策略", ""),), ())
    return dataclasses.replace(made, headers=(("策略", ""), *made.headers[1:]))


def liars(rows: pd.DataFrame) -> Table:
    """JCT of honest and lying requests over the default's in the same round."""
    made = lies_table(rows.assign(label=rows.arm.map(DLA_LABELS)))
    groups = (("诚实", "均值"), ("诚实", "P99"), ("说谎", "均值"), ("说谎", "P99"))
    return dataclasses.replace(made, headers=(("JCT 与默认之比", ""), *groups))

"""Validation (b): a stranger's measured GPU run. python -m experiments.validate_gpu REQUESTS.jsonl

Replays the arrivals and lengths of a measured run (see lab3.sim.traces.read_measured_requests) with
the preset, nothing fitted, and compares TTFT, TPOT and E2E from the moment the engine queued each
request. The defaults are those of LLMServingSim's published run: Llama-3.1-8B on an RTX 4090, 2,588
KV blocks of 16, budget 2048, 256 seats, prefix caching on. Then once more with each assumption
changed: how much of the agreement hangs on it. Writes validation_gpu.csv, validation_gpu.md and
validation_gpu_assumptions.csv into --out. Exit code 1 when the P50 of TTFT or E2E is off by more
than 15 %.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.common import OUT
from experiments.report import write
from lab3.sim.cost_model import Roofline
from lab3.sim.traces import MeasuredRequests, read_measured_requests
from lab3.text_table import Cell, Table, to_text

GOAL = 0.15
SHOWN = (("TTFT", "P50"), ("TTFT", "P99"), ("TPOT", "P50"), ("TPOT", "P99"), ("E2E", "P50"))


def compare(measured: dict[str, np.ndarray], simulated: dict[str, np.ndarray]) -> pd.DataFrame:
    """A row per metric and statistic: measured and simulated seconds, relative error."""
    statistics = {"mean": np.mean}
    statistics |= {f"P{q}": lambda v, q=q: np.percentile(v, q) for q in (50, 90, 99)}
    rows = [
        (metric, name, float(of(measured[metric])), float(of(simulated[metric])))
        for metric in measured
        for name, of in statistics.items()
    ]
    frame = pd.DataFrame(rows, columns=["metric", "statistic", "measured_s", "simulated_s"])
    frame["error"] = frame.simulated_s / frame.measured_s - 1
    return frame


def latencies(ttft_s: np.ndarray, e2e_s: np.ndarray, tokens: np.ndarray) -> dict[str, np.ndarray]:
    """TTFT, TPOT (of answers with more than one token) and E2E."""
    several = tokens > 1
    tpot_s = (e2e_s - ttft_s)[several] / (tokens[several] - 1)
    return {"TTFT": ttft_s, "TPOT": tpot_s, "E2E": e2e_s}


def replay(
    found: MeasuredRequests, cost: Roofline, kv_blocks: int, async_scheduling: bool
) -> pd.DataFrame:
    """``compare`` of the measured run and its simulation."""
    from lab3.sim.lean import create_lean_scheduler
    from lab3.sim.loop import SimulatedEngine

    scheduler = create_lean_scheduler(
        num_blocks=kv_blocks,
        max_num_seqs=256,
        max_num_batched_tokens=2048,
        max_model_len=32_768,
        enable_prefix_caching=True,
        async_scheduling=async_scheduling,
    )
    done = SimulatedEngine(scheduler, found.workload, cost).simulate()
    queued_s, tokens = np.array(done.queued_s), np.array(found.workload.output_tokens)
    first_s = np.array([times[0] for times in done.token_times_s]) - queued_s
    last_s = np.array([times[-1] for times in done.token_times_s]) - queued_s
    return compare(latencies(found.ttft_s, found.e2e_s, tokens), latencies(first_s, last_s, tokens))


def assumptions(cost: Roofline) -> Iterator[tuple[str, dict[str, float], bool]]:
    """(what is changed, cost parameters, whether async scheduling is toggled)."""
    yield "async scheduling toggled", {}, True
    for name in ("compute_efficiency", "bandwidth_efficiency"):
        for factor in (0.9, 1.1):
            changed = {name: round(getattr(cost.device, name) * factor, 4)}
            yield f"{name} {100 * (factor - 1):+.0f} %", changed, False
    yield "layer_overhead_us 0", {"layer_overhead_us": 0.0}, False
    yield "step_overhead_ms doubled", {"step_overhead_ms": 2 * cost.step_overhead_ms}, False


def tables(found: pd.DataFrame, varied: pd.DataFrame) -> list[Table]:
    """Errors of the preset, and what they become with one assumption changed."""
    errors = found.pivot(index="metric", columns="statistic", values="error")
    statistics = list(dict.fromkeys(found.statistic))
    own = [
        (Cell(metric), *(Cell(f"{errors.loc[metric, name]:+.1%}") for name in statistics))
        for metric in dict.fromkeys(found.metric)
    ]
    columns = list(varied.columns.drop("changed"))
    changed = [
        (Cell(row["changed"]), *(Cell(f"{row[name]:+.1%}") for name in columns))
        for row in varied.to_dict("records")
    ]
    return [
        Table("Error of the simulation", tuple((n, "") for n in ("", *statistics)), tuple(own)),
        Table("With one changed", tuple((n, "") for n in ("assumption", *columns)), tuple(changed)),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("requests", type=Path)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--model", default="llama-3.1-8b")
    parser.add_argument("--hardware", default="rtx-4090")
    parser.add_argument("--kv-blocks", type=int, default=2588)
    parser.add_argument("--async-scheduling", action=argparse.BooleanOptionalAction, default=True)
    args = parser.parse_args()
    try:
        found = read_measured_requests(args.requests)
        cost = Roofline.named(args.model, args.hardware)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    table = replay(found, cost, args.kv_blocks, args.async_scheduling)
    args.out.mkdir(parents=True, exist_ok=True)
    table.to_csv(args.out / "validation_gpu.csv", index=False, float_format="%.4g")
    judged = table[(table.statistic == "P50") & table.metric.isin(["TTFT", "E2E"])]
    rows = []
    for name, changed, toggled in assumptions(cost):
        other = Roofline.named(args.model, args.hardware, **changed)
        errors = replay(found, other, args.kv_blocks, args.async_scheduling ^ toggled)
        errors = errors.set_index(["metric", "statistic"]).error
        rows.append({"changed": name} | {f"{m} {s}": errors[m, s] for m, s in SHOWN})
    varied = pd.DataFrame(rows)
    varied.to_csv(args.out / "validation_gpu_assumptions.csv", index=False, float_format="%.3g")
    made, note = tables(table, varied), f"SIMULATED against measured, {cost.name}, nothing fitted."
    write(args.out / "validation_gpu.md", made, [note])
    print("\n\n".join([*map(to_text, made), note]))
    return int((judged.error.abs() > GOAL).any())


if __name__ == "__main__":
    sys.exit(main())

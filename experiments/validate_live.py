"""Validation (a): calibrate on one live run, predict others. python -m experiments.validate_live
--calibrate RUN... --predict RUN...

Fits the step-time model on the recorded steps of the first runs, then simulates each of the others
(policy, settings, rate, lengths and engine read from its run.json) and compares what its client
measured. The runs that are predicted are never fitted on: naming one twice is refused. Writes
validation_live.csv, validation_live.md and the fitted cost model into --out. Goal: means of TTFT
and TPOT within 10 %, P99 within 25 %, for the mean over the repeats of a policy. What the engine
itself recorded stands beside it and is not judged: it tells steps from front end.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.common import OUT, measure
from experiments.report import percent, write
from lab3.bench_file import ResultError
from lab3.calibrate import calibrate, report
from lab3.commands import assignments, option
from lab3.results import load_run
from lab3.sim.cost_model import save_cost_model
from lab3.sim.jobs import Job
from lab3.summary import run_row
from lab3.text_table import Cell, Table, number, to_text

GOALS = {"mean": 0.10, "p99": 0.25}
COMPARED = (
    "ttft_mean_ms",
    "ttft_p50_ms",
    "ttft_p99_ms",
    "tpot_mean_ms",
    "tpot_p50_ms",
    "tpot_p99_ms",
    "e2e_mean_ms",
    "e2e_p99_ms",
)
EXPLAINING = (
    "engine_ttft_mean_ms",
    "engine_ttft_p99_ms",
    "engine_itl_mean_ms",
    "engine_itl_p99_ms",
    "step_mean_ms",
    "step_p99_ms",
    "mixed_step_share",
)


def job_of(raw: dict[str, Any], cost_file: Path) -> Job:
    """The simulation of a live run, from its run.json.

    The requests are those of vLLM's random data set, or of the trace file that its client replayed;
    the predictions are what the server's LAB3_PREDICTOR says. Raises ValueError for a random data
    set with two ratios.
    """
    serve, bench, pool = raw["serve_cmd"], raw["bench_cmd"], raw["kv_cache"]

    def number(words: list[str], name: str, default: float) -> float:
        text = option(words, name)
        return default if text is None else float(text)

    replays = option(bench, "dataset-name") == "timed_trace"
    return Job(
        scheduler=raw["scheduler_cls"],
        settings=raw["scheduler_settings"],
        arm=raw["arm"],
        trace=option(bench, "dataset-path") if replays else None,
        num_prompts=int(number(bench, "num-prompts", 1000)),
        input_len=int(number(bench, "random-input-len", 1024)),
        output_len=int(number(bench, "random-output-len", 128)),
        range_ratio=number(bench, "random-range-ratio", 0.0),
        # A trace comes at its own times.
        request_rate=math.inf if replays else number(bench, "request-rate", math.inf),
        burstiness=number(bench, "burstiness", 1.0),
        predictions=assignments(serve).get("LAB3_PREDICTOR", "none"),
        seed=int(number(bench, "seed", 0)),
        cost_file=str(cost_file),
        kv_blocks=pool["num_blocks"],
        block_size=pool["block_size"],
        max_model_len=int(number(serve, "max-model-len", 32_768)),
        max_num_seqs=int(number(serve, "max-num-seqs", 256)),
        max_num_batched_tokens=int(number(serve, "max-num-batched-tokens", 2048)),
        enable_prefix_caching="--no-enable-prefix-caching" not in serve,
        async_scheduling=bool(raw["async_scheduling"]),
        watermark=number(serve, "watermark", 0.0),
    )


def compare(folder: Path, cost_file: Path) -> list[dict[str, Any]]:
    """A row per compared metric of one live run."""
    run, metrics = load_run(folder), (*COMPARED, *EXPLAINING)
    measured, simulated = run_row(run), measure(job_of(run.info.raw, cost_file), metrics)
    return [
        {
            "arm": run.info.arm,
            "run": folder.name,
            "request_rate": run.info.point.get("request_rate"),
            "metric": metric,
            "measured": measured[metric],
            "simulated": simulated[metric],
        }
        for metric in metrics
    ]


def over_repeats(rows: pd.DataFrame) -> pd.DataFrame:
    """A row per policy and metric: mean over its repeats, their range, error, goal (NaN: none)."""
    grouped = rows.groupby(["arm", "metric"], sort=False)
    found = grouped[["measured", "simulated"]].mean()
    found["low"], found["high"] = grouped.measured.min(), grouped.measured.max()
    found["error"] = found.simulated / found.measured - 1
    metrics = found.index.get_level_values("metric")
    found["goal"] = [goal_of(metric) for metric in metrics]
    return found


def goal_of(metric: str) -> float:
    name, statistic, *_ = metric.split("_")
    return GOALS.get(statistic, math.nan) if name in ("ttft", "tpot") else math.nan


def tables(found: pd.DataFrame) -> list[Table]:
    """Errors of what the client saw, then measured and simulated of what the engine recorded."""
    arms = list(dict.fromkeys(found.index.get_level_values("arm")))
    errors, inside = [], []
    for metric in COMPARED:
        cells = [Cell(metric.removesuffix("_ms").replace("_", " "))]
        for arm in arms:
            own = found.loc[(arm, metric)]
            missed = " missed" if abs(own.error) > own.goal else ""
            cells.append(
                Cell(f"{percent(own.error)}{missed}", f"{number(own.low)} to {number(own.high)} ms")
            )
        errors.append(tuple(cells))
    for metric in EXPLAINING:
        cells = [Cell(metric.removesuffix("_ms").replace("_", " "))]
        for arm in arms:
            own = found.loc[(arm, metric)]
            cells.append(Cell(f"{number(own.measured)} / {number(own.simulated)}"))
        inside.append(tuple(cells))
    headers = (("", ""), *((arm, "") for arm in arms))
    return [
        Table("Error of the simulation [measured, over repeats]", headers, tuple(errors)),
        Table("Inside the engine, measured / simulated (ms, share)", headers, tuple(inside)),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calibrate", type=Path, nargs="+", required=True, metavar="RUN")
    parser.add_argument("--predict", type=Path, nargs="+", required=True, metavar="RUN")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    fitted = {path.resolve() for path in args.calibrate}
    if both := fitted & {path.resolve() for path in args.predict}:
        print(f"error: {both.pop()} is fitted on and must not be predicted", file=sys.stderr)
        return 2
    cost_file = args.out / "validation_live_cost.json"
    args.out.mkdir(parents=True, exist_ok=True)
    try:
        model, steps = calibrate(args.calibrate)
        save_cost_model(model, cost_file)
        print(report(model, steps))
        rows = [row for folder in args.predict for row in compare(folder, cost_file)]
    except (ResultError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    table = pd.DataFrame(rows)
    table.to_csv(args.out / "validation_live.csv", index=False, float_format="%.4g")
    found = over_repeats(table)
    made = tables(found)
    write(args.out / "validation_live.md", made, [f"Step times {model.name}."])
    print("\n\n".join(map(to_text, made)))
    return int((found.error.abs() > found.goal).any())


if __name__ == "__main__":
    sys.exit(main())

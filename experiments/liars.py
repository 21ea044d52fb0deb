"""Can a client buy priority with a lie? python -m experiments.liars --cost-file COST.json

A fifth of the requests claims an output of 1 token, the others say the truth. Simulated on the
engine, load and KV pool of a live comparison (--like RUN, one of dla.sh's run folders, and the
cost.json that it fitted), or without them on a GPU. Prints the mean and P99 JCT of honest and lying
requests under each policy, as a ratio to what the same requests had under vLLM's default. Writes
liars.csv, liars.md and liars.json into --out.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.common import Arm, capacity, options, write_setup
from experiments.report import HONEST_AND_LIARS, lies_table, write
from experiments.sim_dla import lengths_job, scarce_blocks
from experiments.validate_live import job_of
from lab3.bench_file import ResultError
from lab3.predictors import LIE_TOKENS
from lab3.results import read_run_info
from lab3.sim.jobs import Job, run_jobs, simulate
from lab3.text_table import to_text

ARMS = (
    Arm("default"),
    Arm("DLA: victim only", "DLAScheduler", {"admission": "off"}),
    Arm("DLA: victim + reserve", "DLAScheduler", {"admission": "reserve"}),
    Arm(
        "DLA: future peak",
        "DLAScheduler",
        {"victim": "remaining_per_context", "admission": "future_peak"},
    ),
    Arm("DLA-SRPT", "DLASRPTScheduler"),
)


def jct_by_group(job: Job) -> dict[str, Any]:
    """Mean and P99 JCT in ms of honest and lying requests; who lies is the same in every arm."""
    told = job.workload().predicted_tokens
    truth = replace(job, predictions="oracle").workload().predicted_tokens
    simulation = simulate(job, record_steps=False)
    done_s = np.array([times[-1] for times in simulation.token_times_s])
    jct_ms = 1000 * (done_s - np.array(simulation.arrival_s))
    lies = np.array([a == LIE_TOKENS != b for a, b in zip(told, truth, strict=True)])
    row: dict[str, Any] = {"arm": job.arm, "label": job.arm, "seed": job.seed}
    row["preemptions"] = simulation.preemptions
    for name, chosen in zip(HONEST_AND_LIARS, (~lies, lies), strict=True):
        row[f"{name}_requests"] = int(chosen.sum())
        row[f"{name}_mean_ms"] = float(jct_ms[chosen].mean())
        row[f"{name}_p99_ms"] = float(np.percentile(jct_ms[chosen], 99))
    return row


def with_liars(job: Job, bench_cmd: Sequence[str]) -> Job:
    """``job`` with the requests of the second client that scripts/with_liars.sh started."""
    if "scripts/with_liars.sh" not in bench_cmd:
        return job
    at = bench_cmd.index("scripts/with_liars.sh") + 1
    count, rate = int(bench_cmd[at]), float(bench_cmd[at + 1])
    return replace(job, num_prompts=job.num_prompts + count, request_rate=job.request_rate + rate)


def base_job(args: Any) -> Job:
    """The engine and load: a live run's, or decode-heavy requests on a GPU with a scarce pool."""
    if args.like:
        raw = read_run_info(args.like).raw
        return with_liars(replace(job_of(raw, args.cost_file), scheduler=None), raw["bench_cmd"])
    job = lengths_job("decode-heavy", None, args.num_prompts)
    job = replace(job, kv_blocks=scarce_blocks(job))
    return replace(job, request_rate=round(capacity(job), 4))


def main(argv: Sequence[str] | None = None) -> int:
    parser = options(__doc__)
    parser.add_argument("--like", type=Path, help="run folder of the live default to simulate")
    parser.add_argument("--cost-file", type=Path, help="its fitted cost model (cost.json)")
    parser.add_argument("--share", type=float, default=0.2, help="of the requests that lie")
    args = parser.parse_args(argv)
    if (args.like is None) != (args.cost_file is None):
        parser.error("give --like and --cost-file together")
    try:
        base = replace(base_job(args), predictions=f"oracle,liars:{args.share:g}")
    except (ResultError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    jobs = [arm.job(replace(base, seed=seed)) for seed in args.seeds for arm in ARMS]
    found = run_jobs(jobs, jct_by_group, processes=args.processes, quiet=True)
    rows = pd.DataFrame([row for _, row in found])
    args.out.mkdir(parents=True, exist_ok=True)
    rows.to_csv(args.out / "liars.csv", index=False, float_format="%.6g")
    write_setup(args.out / "liars.json", {"experiment": "liars"}, base)
    table = lies_table(rows)
    rate = "all at once" if math.isinf(base.request_rate) else f"{base.request_rate:.3g} requests/s"
    note = (
        f"SIMULATED, {base.cost_model().name}: {base.num_prompts} requests, {rate}, of which "
        f"{args.share:.0%} claim {LIE_TOKENS} token; mean and range of {len(args.seeds)} seeds."
    )
    write(args.out / "liars.md", [table], [note])
    print(to_text(table), note, sep="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

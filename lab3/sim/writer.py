"""A simulated run as the folder that a live run leaves, so that every table and figure reads it.

Everything in it follows from the job: two simulations of one job give the same bytes. What depends
on the machine that simulated (its speed, the date) is not in it.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lab3 import metrics, provenance, run_folder
from lab3.sim.bounds import fractions, lower_bounds
from lab3.sim.cost_model import Roofline

if TYPE_CHECKING:
    from lab3.sim.jobs import Job
    from lab3.sim.loop import Simulation

_PERCENTILES = (50, 90, 99)


def write_run(folder: Path, job: Job, simulation: Simulation) -> None:
    """Write bench.json, steps.jsonl and, last, run.json into ``folder``, which is emptied first."""
    run_folder.start_afresh(folder)
    bench = bench_result(job, simulation)
    (folder / run_folder.BENCH_FILE).write_text(json.dumps(bench) + "\n", encoding="utf-8")
    lines = (json.dumps(step, separators=(",", ":")) + "\n" for step in simulation.steps)
    (folder / run_folder.STEP_FILE).write_text("".join(lines), encoding="utf-8")
    run_folder.write_json(folder / run_folder.RUN_FILE, run_info(job, simulation))


def bench_result(job: Job, simulation: Simulation) -> dict[str, Any]:
    """What ``vllm bench serve --save-result --save-detailed`` would have saved; seconds."""
    workload, times = simulation.workload, simulation.token_times_s
    sent = simulation.arrival_s
    ttfts = [round(own[0] - t, 9) for own, t in zip(times, sent, strict=True)]
    itls = [np.diff(own).round(9).tolist() for own in times]
    latencies = [first + sum(gaps) for first, gaps in zip(ttfts, itls, strict=True)]
    duration = max(t + latency for t, latency in zip(sent, latencies, strict=True)) - sent[0]
    count, outputs = len(sent), sum(workload.output_tokens)
    result = {
        "num_prompts": count,
        "request_rate": "inf" if math.isinf(job.request_rate) else job.request_rate,
        "max_concurrency": None,
        "duration": duration,
        "completed": count,
        "failed": 0,
        "total_input_tokens": sum(workload.input_tokens),
        "total_output_tokens": outputs,
        "request_throughput": count / duration,
        "output_throughput": outputs / duration,
        "total_token_throughput": (outputs + sum(workload.input_tokens)) / duration,
    }
    tokens = np.array(workload.output_tokens)
    tpot_ms = metrics.tpot_ms(1e3 * np.array(latencies), 1e3 * np.array(ttfts), tokens)
    gaps_ms = 1e3 * np.concatenate([np.asarray(gaps, dtype=float) for gaps in itls])
    result |= _statistics("ttft", 1e3 * np.array(ttfts))
    result |= _statistics("tpot", tpot_ms[~np.isnan(tpot_ms)])
    result |= _statistics("itl", gaps_ms)
    result |= _statistics("e2el", 1e3 * np.array(latencies))
    return result | {
        "input_lens": list(workload.input_tokens),
        "output_lens": list(workload.output_tokens),
        "ttfts": ttfts,
        "itls": itls,
        "latencies": latencies,
        "start_times": sent,
        "queue_times": [0.0] * count,
        "generated_texts": [""] * count,
        "errors": [""] * count,
    }


def _statistics(name: str, values_ms: np.ndarray) -> dict[str, float]:
    if not values_ms.size:
        return {}
    found = {f"mean_{name}_ms": float(values_ms.mean())}
    found[f"median_{name}_ms"] = float(np.median(values_ms))
    return found | {f"p{q}_{name}_ms": float(np.percentile(values_ms, q)) for q in _PERCENTILES}


def bound_columns(job: Job, simulation: Simulation) -> dict[str, float]:
    """Bounds and fractions of them; empty for a fitted cost model, which has no peak."""
    cost = job.cost_model()
    if not isinstance(cost, Roofline):
        return {}
    bounds = lower_bounds(simulation.workload, cost, job.kv_blocks, job.block_size)
    times, sent = simulation.token_times_s, np.array(simulation.arrival_s)
    first = np.array([own[0] for own in times]) - sent
    last = np.array([own[-1] for own in times]) - sent
    return fractions(bounds, first, last, simulation.end_s)


def run_info(job: Job, simulation: Simulation) -> dict[str, Any]:
    """run.json of a simulated run."""
    workload, cost = simulation.workload, job.cost_model()
    commit, dirty = provenance.commit()
    rate = "inf" if math.isinf(job.request_rate) else job.request_rate
    return {
        "schema": run_folder.SCHEMA,
        "task": job.task,
        "arm": job.arm,
        "label": job.label or job.arm,
        "repeat": job.repeat,
        "point": {
            "max_num_batched_tokens": job.max_num_batched_tokens,
            "max_num_seqs": job.max_num_seqs,
            "request_rate": rate,
            **job.point,
        },
        "source": "simulated",
        "cost_model": cost.name,
        "cost_model_parameters": cost.parameters(),
        "scheduler_cls": job.scheduler,
        "scheduler_settings": job.settings,
        "scheduler_base": "AsyncScheduler" if job.async_scheduling else "Scheduler",
        "async_scheduling": job.async_scheduling,
        "profile": {"name": "simulated", "MODEL": job.model, "SEED": str(job.seed)},
        "timeout_s": job.timeout_s,
        "asked": {
            "input_tokens": list(workload.input_tokens),
            "output_tokens": list(workload.output_tokens),
            "num_prompts": len(workload),
        },
        "workload": {"name": workload.name, "notes": list(workload.notes)},
        "job": job.as_dict(),
        "versions": provenance.versions(),
        "commit": commit,
        "dirty": dirty,
        "hardware": {"cpu": "simulated", "cores": 0, "ram_gib": None, "gpu": [job.hardware]},
        "kv_cache": {"num_blocks": job.kv_blocks, "block_size": job.block_size},
        "server_metrics": {"num_preemptions": simulation.preemptions},
        "preempted_requests": simulation.preempted_requests,
        "num_steps": simulation.num_steps,
        "bounds": bound_columns(job, simulation),
        "status": "ok",
        "reason": "",
        "started": None,
        "wall_s": None,
        "simulated_s": simulation.end_s,
    }

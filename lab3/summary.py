"""From runs to rows: one row a run, then one row an arm with medians over its repeats.

Column names carry units (`_ms`, `_tokens`, `_per_s`); shares and rates are 0..1. A metric that a
run does not have (no step record, no goal given) is NaN and stays NaN.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from lab3 import metrics
from lab3.results import FailedRun, Run, RunInfo

FIRST_ARMS = ("default", "passthrough")
COUNTER = "counter_"  # starts the columns that hold a policy's own counters
KEYS = ("task", "profile", "arm", "label", "point", "source")


@dataclass(frozen=True)
class Goals:
    """What a request has to keep to count for goodput; both in ms."""

    ttft_ms: float
    itl_ms: float


@dataclass(frozen=True)
class Spread:
    """A metric of one arm: median, smallest and largest over `n` repeats."""

    median: float
    low: float
    high: float
    n: int

    @property
    def width(self) -> float:
        return self.high - self.low


def run_row(run: Run, goals: Goals | None = None) -> dict[str, Any]:
    """All numbers of one run, flat. Failures and timeouts count over every request sent;
    latencies, gaps and throughput are of the kept requests (without the first 10 %)."""
    info, requests = run.info, run.requests
    return {
        **identity(info),
        "repeat": info.repeat,
        "valid": run.valid,
        "problems": "; ".join(run.problems),
        "notes": "; ".join(run.notes),
        "requests_sent": len(requests),
        "requests_failed": int((~requests.ok).sum()),
        "requests_timed_out": int(requests.timed_out.sum()),
        "timeout_rate": float(requests.timed_out.mean()),
        "requests_kept": len(run.kept),
        **_client_numbers(run),
        **_engine_numbers(run),
        **_kv_numbers(run),
        **_goodput_numbers(run, goals),
        **{f"{COUNTER}{name}": float(value) for name, value in run.counters.items()},
        **_bound_numbers(run),
        "itl_unit": run.itl_unit,
        "started": info.raw.get("started"),
        "commit": info.raw.get("commit"),
        "folder": info.folder.name,
    }


def identity(info: RunInfo) -> dict[str, Any]:
    """What makes a run comparable with another: the columns of KEYS."""
    return {
        "task": info.task,
        "profile": info.profile.get("name"),
        "arm": info.arm,
        "label": info.label,
        "point": json.dumps(info.point, sort_keys=True),
        "source": info.source,
    }


def runs_table(runs: Sequence[Run], goals: Goals | None = None) -> pd.DataFrame:
    """A row per run, sorted: default, Passthrough, the other arms by label; then point, repeat."""
    return pd.DataFrame([run_row(run, goals) for run in sorted(runs, key=arm_order)])


def arm_order(run: Run) -> tuple:
    """Sort key: default, Passthrough, the other arms by label; then point, then repeat."""
    info = run.info
    first = FIRST_ARMS.index(info.arm) if info.arm in FIRST_ARMS else len(FIRST_ARMS)
    point = [float(value) for value in info.point.values() if _is_number(value)]
    return first, _natural(info.label), point, info.repeat


def _natural(label: str) -> list[str | int]:
    """Sorts "X=64" before "X=512"."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", label)]


def summary_table(rows: pd.DataFrame) -> pd.DataFrame:
    """A row per arm and point: for each metric its median, `_min` and `_max` over the repeats.

    Repeats with failures are left out where the arm has clean ones: an engine that died halfway
    shows better latencies. An arm without a clean repeat keeps what it has, with `valid` False.
    `repeats` counts what was used, `repeats_left_out` the others.
    """
    numbers = metric_columns(rows)
    out = []
    for key, group in rows.groupby(list(KEYS), sort=False, dropna=False):
        used = group[group.valid] if group.valid.any() else group
        row = dict(zip(KEYS, key, strict=True))
        row |= {
            "valid": bool(group.valid.any()),
            "repeats": len(used),
            "repeats_left_out": len(group) - len(used),
            "itl_unit": "chunk" if (used.itl_unit == "chunk").any() else "token",
        }
        for name in numbers:
            values = used[name].astype(float).dropna()
            row[name] = values.median() if len(values) else np.nan
            row[f"{name}_min"] = values.min() if len(values) else np.nan
            row[f"{name}_max"] = values.max() if len(values) else np.nan
        out.append(row)
    return pd.DataFrame(out)


def metric_columns(rows: pd.DataFrame) -> list[str]:
    """The columns of `runs_table` that are measurements."""
    return [
        name
        for name in rows.columns
        if name not in ("repeat", "valid") and pd.api.types.is_numeric_dtype(rows[name])
    ]


def spread(row: pd.Series, metric: str) -> Spread:
    """One metric of one row of `summary_table`."""
    return Spread(
        float(row[metric]),
        float(row[f"{metric}_min"]),
        float(row[f"{metric}_max"]),
        int(row.repeats),
    )


def within_noise(a: Spread, b: Spread) -> bool:
    """Whether the repeats of either arm differ by at least as much as the two medians do.

    With a single repeat the noise is unknown, and no difference counts as shown.
    """
    if min(a.n, b.n) < 2:
        return True
    return max(a.width, b.width) >= abs(a.median - b.median)


def missing_repeats(
    runs: Sequence[Run], failed: Sequence[FailedRun], wanted: int | None = None
) -> list[str]:
    """Arms with fewer usable repeats than `wanted` (or than the arm with most), a line each."""
    usable = Counter(_arm_at_point(run.info) for run in runs)
    tried = [run.info for run in runs] + [f.info for f in failed if f.info.raw and not f.refused]
    wanted = wanted or max(usable.values(), default=0)
    arms = dict.fromkeys(_arm_at_point(info) for info in tried)
    return [f"{a}: {usable[a]} of {wanted} repeats usable" for a in arms if usable[a] < wanted]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) or value == "inf"


def _percentiles(prefix: str, values: Any) -> dict[str, float]:
    return {
        f"{prefix}_mean_ms": metrics.mean(values),
        **{f"{prefix}_p{q}_ms": metrics.percentile(values, q) for q in (50, 90, 99)},
        f"{prefix}_max_ms": metrics.largest(values),
    }


def _client_numbers(run: Run) -> dict[str, float]:
    kept, gaps = run.kept, run.kept_gaps_ms
    window_s = run.window_s[1] - run.window_s[0]
    output, prompt = kept.output_tokens.sum(), kept.input_tokens.sum()
    return {
        **_percentiles("ttft", kept.ttft_ms),
        **_percentiles("itl", gaps),
        **_percentiles("e2e", kept.e2e_ms),
        **_percentiles("tpot", kept.tpot_ms),
        **_percentiles("max_gap", kept.max_gap_ms),
        "output_tokens_per_s": metrics.per_second(output, window_s),
        "total_tokens_per_s": metrics.per_second(output + prompt, window_s),
        "requests_per_s": metrics.per_second(len(kept), window_s),
        "window_s": window_s,
        "tiny_gap_share": metrics.share_below(gaps, metrics.TINY_GAP_MS),
    }


def _engine_numbers(run: Run) -> dict[str, float]:
    """From the step record: latencies and steps of the window, token sums of the whole run."""
    steps = run.steps
    window = steps[steps.in_window] if steps is not None else None
    prefill = [] if window is None else window.prefill_tokens.to_numpy()
    decode = [] if window is None else window.decode_tokens.to_numpy()
    sums = {
        name: float("nan") if steps is None else float(steps[name].sum())
        for name in ("prefill_tokens", "decode_tokens", "recomputed_tokens")
    }
    preemptions = (run.info.raw.get("server_metrics") or {}).get("num_preemptions")
    if preemptions is None and steps is not None:
        preemptions = steps.preemptions.sum()
    return {
        **_percentiles("engine_ttft", run.engine_ttft_ms),
        **_percentiles("engine_itl", run.engine_itl_ms),
        **_percentiles("step", [] if window is None else window.step_ms),
        "mixed_step_share": metrics.mixed_step_share(np.array(prefill), np.array(decode)),
        "preemptions": float("nan") if preemptions is None else float(preemptions),
        "recomputed_tokens": sums["recomputed_tokens"],
        "recompute_tax": metrics.recompute_tax(
            sums["recomputed_tokens"], sums["prefill_tokens"], sums["decode_tokens"]
        ),
    }


def _kv_numbers(run: Run) -> dict[str, float]:
    """Peak use of the KV pool: what /metrics showed during the run, else the step record's.

    Tokens are tokens of room in the blocks in use; MiB of them as bytes per token are known.
    """
    server, pool = run.info.raw.get("server_metrics") or {}, run.info.raw.get("kv_cache") or {}
    share, tokens = server.get("kv_usage_peak"), server.get("kv_tokens_peak")
    if share is None and run.steps is not None and pool.get("num_blocks"):
        share = run.steps.kv_blocks.max() / pool["num_blocks"]
        if pool.get("block_size"):
            tokens = run.steps.kv_blocks.max() * pool["block_size"]
    token_bytes = run.info.raw.get("kv_bytes_per_token")
    mib = None if tokens is None or token_bytes is None else tokens * token_bytes / 2**20
    numbers = {"kv_peak_share": share, "kv_peak_tokens": tokens, "kv_peak_mib": mib}
    return {key: float("nan") if n is None else float(n) for key, n in numbers.items()}


def _goodput_numbers(run: Run, goals: Goals | None) -> dict[str, float]:
    if goals is None:
        return {}
    kept = run.requests[run.requests.in_window]
    good = metrics.meets_goals(kept.ttft_ms, kept.gap_p99_ms, goals.ttft_ms, goals.itl_ms)
    window_s = run.window_s[1] - run.window_s[0]
    return {
        "good_share": float(good.mean()),
        "goodput_requests_per_s": metrics.per_second(good.sum(), window_s),
    }


def _bound_numbers(run: Run) -> dict[str, float]:
    """A simulated run's lower bounds over what it reached; nothing for a live one."""
    bounds = run.info.raw.get("bounds") or {}
    return {name: float(value) for name, value in bounds.items() if name.endswith("_fraction")}


def _arm_at_point(info: RunInfo) -> str:
    values = ", ".join(f"{name}={value}" for name, value in info.point.items())
    return f"{info.label} ({values})" if values else info.label

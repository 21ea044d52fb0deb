"""What the experiments share: jobs to rows, rows kept in a CSV, capacity of an engine, arms."""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pandas as pd

from lab3.results import load_run
from lab3.sim.jobs import Job, run_jobs, simulate
from lab3.sim.writer import write_run
from lab3.summary import run_row

AT_ONCE = 1e6
"""Requests/s that send everything at once, a trace's rows too."""

OUT = Path(__file__).resolve().parent.parent / "results" / "sim"
METRICS = (
    "ttft_mean_ms",
    "ttft_p50_ms",
    "ttft_p99_ms",
    "tpot_mean_ms",
    "itl_p50_ms",
    "itl_p99_ms",
    "max_gap_p50_ms",
    "max_gap_p99_ms",
    "max_gap_max_ms",
    "e2e_mean_ms",
    "e2e_p50_ms",
    "e2e_p99_ms",
    "output_tokens_per_s",
    "requests_per_s",
    "preemptions",
    "recomputed_tokens",
    "recompute_tax",
    "kv_peak_share",
    "mixed_step_share",
    "timeout_rate",
)


@dataclass(frozen=True)
class Arm:
    """A scheduler under test: class, settings, and vLLM options that differ from the default."""

    name: str
    scheduler: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)

    def job(self, base: Job) -> Job:
        return replace(
            base,
            scheduler=self.scheduler and f"my_scheduler.{self.scheduler}",
            settings=self.settings,
            arm=self.name,
            **self.options,
        )


def measure(job: Job, metrics: Sequence[str] = METRICS) -> dict[str, Any]:
    """One row: ``metrics`` of lab3.summary over the run folder, queue depth and bounds."""
    simulation = simulate(job)
    with tempfile.TemporaryDirectory() as folder:
        write_run(Path(folder, "run"), job, simulation)
        run = load_run(Path(folder, "run"))
    row = run_row(run)
    found = {name: row[name] for name in metrics}
    steps = run.steps[run.steps.in_window]
    found["waiting_mean"] = float(steps.waiting.mean())
    found["running_mean"] = float(steps.running.mean())
    found["makespan_s"] = simulation.end_s
    engine = {"request_rate": job.request_rate, "kv_blocks": job.kv_blocks}
    return engine | found | run.info.raw["bounds"]


def capacity(job: Job) -> float:
    """Requests per second that vLLM's default finishes when all come at once.

    Counted from the first fifth of the requests to the last: filling and draining the engine
    would make it look slower than it is under lasting load.
    """
    everything = replace(job, scheduler=None, settings={}, request_rate=AT_ONCE, predictions="none")
    simulation = simulate(everything, record_steps=False)
    ends_s = sorted(times[-1] for times in simulation.token_times_s)
    first, last = len(ends_s) // 5, 4 * len(ends_s) // 5
    if ends_s[last] == ends_s[first]:
        return len(ends_s) / simulation.end_s
    return (last - first) / (ends_s[last] - ends_s[first])


@dataclass
class Table:
    """Rows of an experiment in a CSV file; rows that are there are not simulated again.

    ``keys``: the columns that tell rows apart; a row's dict of keys may hold further columns.
    """

    path: Path
    keys: tuple[str, ...]

    def read(self) -> pd.DataFrame:
        if not self.path.exists():
            return pd.DataFrame(columns=[*self.keys])
        return pd.read_csv(self.path, dtype=dict.fromkeys(self.keys, str))

    def fill(
        self, wanted: Sequence[tuple[dict[str, Any], Job]], processes: int | None, limit_s: float
    ) -> bool:
        """Simulate what is missing, at most ``limit_s`` seconds; whether nothing is missing now."""
        known = {tuple(row) for row in self.read()[list(self.keys)].itertuples(index=False)}
        todo = [(key, job) for key, job in wanted if self._identity(key) not in known]
        began_s, size = time.monotonic(), 6 * (processes or 2)
        while todo and time.monotonic() - began_s < limit_s:
            part, todo = todo[:size], todo[size:]
            results = run_jobs([job for _, job in part], measure, processes=processes, quiet=True)
            rows = [key | row for (key, _), (_, row) in zip(part, results, strict=True)]
            self._append(rows)
            print(f"{self.path.name}: {len(todo)} of {len(wanted)} simulations left", flush=True)
        return not todo

    def _append(self, rows: list[dict[str, Any]]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = pd.DataFrame(rows)
        new[list(self.keys)] = new[list(self.keys)].astype(str)
        # Before the first row is written the table has no columns that could be joined.
        frame = pd.concat([self.read(), new]) if self.path.exists() else new
        frame.to_csv(self.path, index=False, float_format="%.6g")

    def _identity(self, key: dict[str, Any]) -> tuple[str, ...]:
        return tuple(str(key[name]) for name in self.keys)


@dataclass(frozen=True)
class Experiment:
    """``wanted(args)`` gives (keys, job) of every row.

    ``name``: of the CSV and JSON files. ``base(args)``: what all jobs have in common.
    ``show(rows, out)`` makes tables and figures.
    """

    name: str
    keys: tuple[str, ...]
    base: Callable[[argparse.Namespace], Job]
    wanted: Callable[[argparse.Namespace], Iterable[tuple[dict[str, Any], Job]]]
    show: Callable[[pd.DataFrame, Path], None]

    def main(self, doc: str | None, *, with_trace: bool = False) -> int:
        """The experiment's command; 0 complete, 2 for a mistake, 3 stopped by ``--limit-s``."""
        args = options(doc, with_trace).parse_args()
        table = Table(args.out / f"{self.name}.csv", self.keys)
        try:
            self._set_up(args.out / f"{self.name}.json", self.base(args), table)
            wanted = list(self.wanted(args))
        except ValueError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        complete = table.fill(wanted, args.processes, args.limit_s)
        if table.path.exists():
            self.show(table.read(), args.out)
        return 0 if complete else 3

    def _set_up(self, path: Path, base: Job, table: Table) -> None:
        description = {"experiment": self.name}
        text = setup_text(description, base)
        if table.path.exists() and path.exists() and path.read_text(encoding="utf-8") != text:
            raise ValueError(
                f"the rows of {table.path} were made with other options or another vLLM, see "
                f"{path.name}: take another --out"
            )
        write_setup(path, description, base)


def options(doc: str | None, with_trace: bool = False) -> argparse.ArgumentParser:
    """The options that every experiment has."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the results")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--num-prompts", type=int, default=200)
    parser.add_argument("--processes", type=int, help="side by side (default: all cores)")
    parser.add_argument("--limit-s", type=float, default=math.inf, help="stop after so long")
    if with_trace:
        parser.add_argument("--trace", type=Path, help="CSV trace whose lengths are tried as well")
    return parser


def write_setup(path: Path, description: dict[str, Any], base: Job) -> None:
    """What the rows of an experiment have in common, as JSON beside the CSV."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(setup_text(description, base), encoding="utf-8")


def setup_text(description: dict[str, Any], base: Job) -> str:
    content = description | {
        "source": "simulated",
        # Without what follows a "+": the builds for CPU and GPU have the same schedulers.
        "vllm": metadata.version("vllm").partition("+")[0],
        "cost_model": base.cost_model().parameters(),
        "base_job": base.as_dict(),
    }
    return json.dumps(content, indent=1) + "\n"

"""Reads one run folder into tables of requests and engine steps.

A run folder holds what `vllm bench serve --save-result --save-detailed` wrote (bench.json, never
edited), the scheduler's step record (steps.jsonl, absent for vLLM's default scheduler) and
run.json, which says what was run.

How bench.json is read, with warm-up, failures and timeouts, is said in lab3/bench_file.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lab3 import metrics
from lab3.bench_file import (
    WARMUP_SHARE,
    ResultError,
    as_asked,
    first_error,
    read_bench,
    read_json_objects,
    requests_frame,
    result_problems,
)
from lab3.step_file import (
    flatten,
    joined_counters,
    last_counters,
    read_steps,
    run_lengths,
    steps_frame,
)

RUN_FILE, BENCH_FILE, STEP_FILES = "run.json", "bench.json", "steps*.jsonl"
_MARKS_OF_A_RUN = (RUN_FILE, BENCH_FILE, "server.log", "bench.log")


@dataclass(frozen=True)
class RunInfo:
    """What run.json says about a run; `raw` is the whole file (empty without one)."""

    folder: Path
    raw: dict[str, Any] = field(repr=False)

    @property
    def task(self) -> str:
        return str(self.raw.get("task") or self.folder.parent.name.split("-")[0])

    @property
    def arm(self) -> str:
        return str(self.raw.get("arm") or self.folder.name)

    @property
    def label(self) -> str:
        return str(self.raw.get("label") or self.arm)

    @property
    def repeat(self) -> int:
        return int(self.raw.get("repeat") or 1)

    @property
    def point(self) -> dict[str, Any]:
        return dict(self.raw.get("point") or {})

    @property
    def profile(self) -> dict[str, Any]:
        return dict(self.raw.get("profile") or {})

    @property
    def source(self) -> str:
        return str(self.raw.get("source") or "measured")

    @property
    def timeout_s(self) -> float:
        """The time in which an answer has to be whole; infinite when run.json has none."""
        value = self.raw.get("timeout_s")
        return float("inf") if value is None else float(value)

    @property
    def asked(self) -> dict[str, Any]:
        return dict(self.raw.get("asked") or {})


@dataclass(frozen=True)
class Run:
    """One finished run.

    requests: a row per request in send order: start_s, input_tokens, output_tokens, ttft_ms,
        e2e_ms, tpot_ms, max_gap_ms, gap_p99_ms, queue_ms, error, ok, timed_out, in_window.
    gaps_ms: for each request the gaps between its chunks; empty for failed requests.
    steps: a row per engine step between the first send and the last answer: t_s, done_s, step_ms,
        the record's counts, engine (0 unless data parallel), in_window. None without a record.
    engine_ttft_ms, engine_itl_ms: what the engine itself saw in the steps of the window.
    counters: the scheduler's own counters at the end of the run, of all engines together.
    window_s: (start, end) of the kept requests on the clock of start_s and t_s.
    reported: the single numbers that vLLM wrote into the bench file.
    problems: why the run is not a clean measurement; empty for a valid run.
    notes: what a reader should know but what does not make the run invalid.
    """

    info: RunInfo
    requests: pd.DataFrame = field(repr=False)
    gaps_ms: tuple[np.ndarray, ...] = field(repr=False)
    steps: pd.DataFrame | None = field(repr=False)
    engine_ttft_ms: np.ndarray = field(repr=False)
    engine_itl_ms: np.ndarray = field(repr=False)
    counters: dict[str, float] = field(repr=False)
    window_s: tuple[float, float]
    itl_unit: str
    reported: dict[str, Any] = field(repr=False)
    problems: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def valid(self) -> bool:
        return not self.problems

    @property
    def kept(self) -> pd.DataFrame:
        """The successful requests of the window: what latencies and throughput are made of."""
        return self.requests[self.requests.ok & self.requests.in_window]

    @property
    def kept_gaps_ms(self) -> np.ndarray:
        """All gaps between chunks of the kept requests, one flat array."""
        return flatten([self.gaps_ms[i] for i in self.kept.index])


@dataclass(frozen=True)
class FailedRun:
    """A run folder without usable numbers, and the reason in one line.

    `refused`: a point of a sweep whose options vLLM does not take; no failure of ours.
    """

    info: RunInfo
    reason: str

    @property
    def refused(self) -> bool:
        return self.info.raw.get("status") == "refused"


def load_runs(root: Path, task: str | None = None) -> tuple[list[Run], list[FailedRun]]:
    """All runs below `root` (of one task), usable and failed, each sorted by folder.

    Raises ResultError when there is no run folder, or when the runs come from several profiles
    (their numbers do not belong in one table).
    """
    runs: list[Run] = []
    failed: list[FailedRun] = []
    for folder in find_run_folders(root):
        info = RunInfo(folder, {})
        try:
            info = read_run_info(folder)
            if task is None or info.task == task:
                runs.append(load_run(folder))
        except ResultError as error:
            if task is None or info.task == task:
                failed.append(FailedRun(info, str(error)))
    if not runs and not failed:
        raise ResultError(f"no run of {task or 'any task'} below {root}: run {task or 'it'} first")
    profiles = sorted({str(r.info.profile.get("name")) for r in runs})
    if len(profiles) > 1:
        raise ResultError(f"{root} mixes the profiles {', '.join(profiles)}: name one folder")
    return runs, failed


def find_run_folders(root: Path) -> list[Path]:
    """Folders at or below `root` that a run has written to, finished or not, sorted."""
    found = {path.parent for name in _MARKS_OF_A_RUN for path in Path(root).rglob(name)}
    return sorted(found)


def read_run_info(folder: Path) -> RunInfo:
    """run.json of a folder; ResultError when it is missing or broken: the run never finished."""
    path = Path(folder) / RUN_FILE
    if not path.exists():
        raise ResultError("unfinished: no run.json, start the script again to redo it")
    return RunInfo(Path(folder), read_json_objects(path)[-1])


def load_run(folder: Path, warmup_share: float = WARMUP_SHARE) -> Run:
    """Reads a finished run. One that ended badly but left a whole bench file is read with its
    `problems`.

    Raises ResultError for a run that failed before there were results, a bench file that is
    empty, cut or without per-request data, and for a run in which no request succeeded.
    """
    info = read_run_info(folder)
    status = info.raw.get("status", "ok")
    ended = "" if status == "ok" else f"{status}: {info.raw.get('reason') or 'no reason given'}"
    if ended and not (info.folder / BENCH_FILE).exists():
        raise ResultError(ended)
    records = read_bench(info.folder / BENCH_FILE)
    bench, notes = records[-1], []
    if len(records) > 1:
        notes.append(f"bench.json holds {len(records)} appended results, the last one is used")
    requests, gaps = requests_frame(bench, info.timeout_s, warmup_share)
    _require_success(requests)
    kept = requests[requests.ok & requests.in_window]
    window = (float(kept.start_s.min()), float((kept.start_s + kept.e2e_ms / 1000).max()))
    steps, counters, step_notes = _load_steps(info.folder, requests, window)
    unit, unit_note = _itl_unit(requests, gaps)
    in_window = steps[steps.in_window] if steps is not None else None
    return Run(
        info=info,
        requests=requests,
        gaps_ms=gaps,
        steps=None if steps is None else steps.drop(columns=["ttft_ms", "itl_ms"]),
        engine_ttft_ms=flatten([] if in_window is None else in_window.ttft_ms),
        engine_itl_ms=run_lengths([] if in_window is None else in_window.itl_ms),
        counters=counters,
        window_s=window,
        itl_unit=unit,
        reported={k: v for k, v in bench.items() if not isinstance(v, list)},
        problems=tuple(result_problems(requests, info.asked) or ([ended] if ended else [])),
        notes=tuple(notes + unit_note + step_notes + _input_notes(requests, info.asked)),
    )


def check_against_vllm(run: Run, tolerance: float = 1e-6) -> list[str]:
    """Where our numbers over all successes differ from those vLLM wrote into the same file.

    Compares counts, token sums, throughputs and every mean, deviation and percentile of TTFT,
    TPOT, ITL and E2E that the file has. Returns a line a difference beyond the relative
    `tolerance`; an empty list means that we read the file as vLLM meant it.
    """
    good = run.requests[run.requests.ok]
    seconds = float(run.reported.get("duration") or float("nan"))
    ours = {
        "completed": len(good),
        "failed": len(run.requests) - len(good),
        "total_input_tokens": good.input_tokens.sum(),
        "total_output_tokens": good.output_tokens.sum(),
        "request_throughput": len(good) / seconds,
        "output_throughput": good.output_tokens.sum() / seconds,
        "total_token_throughput": (good.input_tokens + good.output_tokens).sum() / seconds,
    }
    samples = {
        "ttft": good.ttft_ms - good.queue_ms,
        "tpot": good.tpot_ms.dropna(),
        "itl": flatten(run.gaps_ms),
        "e2el": good.e2e_ms - good.queue_ms,
    }
    for key in run.reported:
        statistic, _, rest = key.partition("_")
        sample = samples.get(rest.removesuffix("_ms"))
        if sample is not None and rest.endswith("_ms"):
            ours[key] = _statistic(np.asarray(sample), statistic)
    return [
        f"{key}: here {ours[key]:.6g}, in the file {run.reported[key]:.6g}"
        for key in ours
        if run.reported.get(key) is not None
        and not np.isclose(ours[key], run.reported[key], rtol=tolerance, atol=1e-9)
    ]


def _statistic(sample: np.ndarray, name: str) -> float:
    if not sample.size:
        return 0.0  # what vLLM writes for "nothing to average"
    if name == "mean":
        return float(sample.mean())
    if name == "std":
        return float(sample.std())
    return metrics.percentile(sample, 50.0 if name == "median" else float(name[1:]))


def _require_success(requests: pd.DataFrame) -> None:
    n, good = len(requests), int(requests.ok.sum())
    if not n:
        raise ResultError("0 requests in bench.json")
    if not good:
        raise ResultError(f"0 of {n} requests succeeded ({first_error(requests)})")
    if not (requests.ok & requests.in_window).any():
        raise ResultError(f"{good} of {n} requests succeeded, all of them warm-up")


def _input_notes(requests: pd.DataFrame, asked: dict[str, Any]) -> list[str]:
    wrong = requests.input_tokens[~as_asked(requests, asked, "input_tokens")]
    if not len(wrong):
        return []
    return [f"{len(wrong)} prompts not as long as asked ({wrong.min()}..{wrong.max()} tokens)"]


def _itl_unit(requests: pd.DataFrame, gaps: tuple[np.ndarray, ...]) -> tuple[str, list[str]]:
    expected = requests.output_tokens[requests.ok].clip(lower=1) - 1
    got = np.array([len(gaps[i]) for i in expected.index])
    if (got == expected.to_numpy()).all():
        return "token", []
    return "chunk", [
        f"ITL is per chunk: {got.sum()} gaps for {expected.sum()} tokens after the first"
    ]


def _load_steps(
    folder: Path, requests: pd.DataFrame, window_s: tuple[float, float]
) -> tuple[pd.DataFrame | None, dict[str, float], list[str]]:
    """The step record between the first send and the last answer: warm-up calls are left out."""
    paths = sorted(folder.glob(STEP_FILES), key=lambda path: (len(path.name), path.name))
    records = [read_steps(path) for path in paths]
    counters = joined_counters(map(last_counters, records))
    frames = [steps_frame(record, engine) for engine, record in enumerate(records) if record]
    if not frames:
        return None, {}, [f"{path.name} is empty" for path in paths]
    steps = pd.concat(frames, ignore_index=True)
    ends_s = (requests.start_s + requests.e2e_ms.fillna(0) / 1000).max()
    steps = steps[steps.t_s.between(requests.start_s.min(), ends_s)].reset_index(drop=True)
    if steps.empty:
        return None, {}, ["no recorded step lies between the first send and the last answer"]
    steps["in_window"] = steps.t_s.between(*window_s)
    return steps, counters, []

"""One simulation as plain data, and many of them side by side over the cores.

for job, row in run_jobs(jobs, summarize): ...
"""

from __future__ import annotations

import math
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from lab3.sim import presets
from lab3.sim.cost_model import FittedCost, Roofline, load_cost_model
from lab3.sim.predictions import predicted
from lab3.sim.traces import read_trace
from lab3.sim.workload import (
    Workload,
    fit_lengths,
    random_workload,
    redraw_arrivals,
    sample,
    scale_rate,
    shaped_workload,
)

Result = TypeVar("Result")


@dataclass(frozen=True)
class Job:
    """Everything that a simulation depends on.

    Workload: ``trace`` (a CSV file) or ``shape`` (``SHAPES``) or random lengths. ``request_rate``
    inf sends everything at once, or replays a trace's own times unless ``rate_scale`` says faster;
    any other rate draws arrivals as ``vllm bench serve`` does. ``exact_max_tokens``: ask for the
    true output length as ``max_tokens``, else for ``max_output_tokens``.
    ``cost_file``: a cost model of ``lab3.calibrate`` instead of ``model`` on ``hardware``.
    ``kv_blocks`` 0: what the device would have room for.
    """

    scheduler: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    arm: str = "default"
    label: str = ""
    task: str = "sim"
    repeat: int = 1
    point: dict[str, Any] = field(default_factory=dict)
    trace: str | None = None
    shape: str | None = None
    num_prompts: int = 1000
    input_len: int = 1024
    output_len: int = 256
    range_ratio: float = 0.0
    prefix_len: int = 0
    request_rate: float = math.inf
    burstiness: float = 1.0
    rate_scale: float = 1.0
    resample: bool = False
    max_output_tokens: int | None = None
    clip: str = "clip"
    predictions: str = "none"
    seed: int = 0
    model: str = "qwen2.5-7b"
    hardware: str = "a100-80g"
    cost: dict[str, Any] = field(default_factory=dict)
    cost_file: str | None = None
    kv_blocks: int = 0
    block_size: int = 16
    max_model_len: int = 32_768
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    enable_prefix_caching: bool = False
    async_scheduling: bool = True
    watermark: float = 0.0
    reserve_full_isl: bool = True
    timeout_s: float = 60.0

    def __post_init__(self) -> None:
        if self.kv_blocks == 0:
            if self.cost_file:
                raise ValueError("with a fitted cost model say how many --kv-blocks there are")
            device, model = presets.find_device(self.hardware), presets.find_model(self.model)
            blocks = presets.kv_blocks(device, model, self.block_size)
            object.__setattr__(self, "kv_blocks", blocks)
        if self.kv_blocks < 2:
            raise ValueError("--kv-blocks must be 2 or more: one block is vLLM's own")

    def as_dict(self) -> dict[str, Any]:
        """The fields that JSON can hold, for the record."""
        return asdict(self) | {"request_rate": _json_rate(self.request_rate)}

    def cost_model(self) -> Roofline | FittedCost:
        """Raises ValueError for an unknown preset, parameter or an unusable file."""
        if self.cost_file:
            return load_cost_model(Path(self.cost_file))
        return Roofline.named(self.model, self.hardware, **self.cost)

    @cached_property
    def longest(self) -> int:
        """Tokens that one request can have at most on this engine."""
        return min(self.max_model_len, (self.kv_blocks - 1) * self.block_size)

    def workload(self) -> Workload:
        """The requests, with predictions; raises ValueError for options that make no sense."""
        found = fit_lengths(self._requests(), self.longest, self.clip)
        if self.max_output_tokens:
            found = replace(found, max_output_tokens=self.max_output_tokens)
        return predicted(found, self.predictions, seed=self.seed)

    def _requests(self) -> Workload:
        rate, seed = self.request_rate, self.seed
        if self.shape:
            return shaped_workload(self.shape, self.num_prompts, seed=seed, rate=rate)
        if not self.trace:
            return random_workload(
                self.num_prompts,
                self.input_len,
                self.output_len,
                seed=seed,
                rate=rate,
                range_ratio=self.range_ratio,
                burstiness=self.burstiness,
                prefix_len=self.prefix_len,
            )
        if self.resample:
            found = sample(read_trace(Path(self.trace)), self.num_prompts, seed=seed)
        else:
            found = read_trace(Path(self.trace), self.num_prompts)
        if not math.isinf(rate):
            return redraw_arrivals(found, rate, seed=seed, burstiness=self.burstiness)
        return found if self.rate_scale == 1 else scale_rate(found, self.rate_scale)


def simulate(job: Job, *, record_steps: bool = True, progress: Callable | None = None) -> Any:
    """Run ``job``; returns a ``loop.Simulation``.

    Raises:
        ValueError: a scheduler, setting, preset or workload that does not exist.
        SimulationError: a request that can never fit, or no progress.
    """
    from lab3.sim.lean import create_lean_scheduler
    from lab3.sim.loop import SimulatedEngine

    workload, cost = job.workload(), job.cost_model()
    scheduler = create_lean_scheduler(
        job.scheduler,
        num_blocks=job.kv_blocks,
        block_size=job.block_size,
        max_num_seqs=job.max_num_seqs,
        max_num_batched_tokens=job.max_num_batched_tokens,
        max_model_len=job.longest,
        enable_prefix_caching=job.enable_prefix_caching,
        async_scheduling=job.async_scheduling,
        watermark=job.watermark,
        reserve_full_isl=job.reserve_full_isl,
        settings=job.settings,
    )
    engine = SimulatedEngine(
        scheduler, workload, cost, seed=job.seed, record_steps=record_steps, progress=progress
    )
    return engine.simulate()


def run_jobs(
    jobs: Sequence[Job],
    work: Callable[[Job], Result],
    *,
    processes: int | None = None,
    quiet: bool = False,
) -> Iterator[tuple[Job, Result]]:
    """``work(job)`` of every job in order, ``processes`` at a time; progress goes to stderr.

    ``work`` must be a function of a module. An exception ends everything.
    """
    processes = min(processes or len(os.sched_getaffinity(0)), len(jobs))
    began_s = time.monotonic()
    if processes <= 1:
        for done, job in enumerate(jobs, start=1):
            yield job, work(job)
            _say_progress(done, len(jobs), began_s, quiet)
        return
    # vLLM is imported once and shared: an import takes as long as many simulations.
    import lab3.sim.loop  # noqa: F401

    context = multiprocessing.get_context("fork")
    with context.Pool(processes, initializer=_one_thread) as pool:
        results = pool.imap(work, jobs)
        for done, (job, result) in enumerate(zip(jobs, results, strict=True), start=1):
            yield job, result
            _say_progress(done, len(jobs), began_s, quiet)


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


def _say_progress(done: int, total: int, began_s: float, quiet: bool) -> None:
    if quiet:
        return
    spent_s = time.monotonic() - began_s
    left_s = round(spent_s / done * (total - done))
    end = "\n" if done == total else ""
    text = f"\r{done}/{total} simulations, {spent_s:.0f} s, eta {left_s // 60}:{left_s % 60:02d}  "
    print(text, end=end, file=sys.stderr, flush=True)


def _json_rate(rate: float) -> float | str:
    return "inf" if math.isinf(rate) else rate

"""The engine loop on a virtual clock: the real scheduler, no model, every step written down.

    simulation = simulate(create_scheduler("my_scheduler.SJFScheduler"), workload, cost_model)
    simulation.token_times_s[0]              # when each token of request 0 reached the client

The loop is ``lab3.driver``'s, which follows EngineCore: one batch at a time, or two in flight under
async scheduling. Between steps the requests that have arrived are handed to the scheduler; when
nothing is left to do the clock jumps to the next arrival.
"""

from __future__ import annotations

import gc
import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

from lab3.driver import Driver, Stalled, Step
from lab3.engine import EOS_TOKEN_ID
from lab3.sim.cost_model import CostModel, FittedCost, StepLoad
from lab3.sim.workload import Workload

_TOKEN_ID = 1000
_SHARED_TOKEN_ID = 2


class SimulationError(RuntimeError):
    """The workload cannot run on this engine; the text says why and what to do."""


@dataclass
class Simulation:
    """What happened, in seconds of the virtual clock, which starts at the first arrival.

    ``arrival_s``: when the client sent each request. ``queued_s``: when the engine took it up.
    ``token_times_s``: for each request the time of each of its tokens.
    ``steps``: one record per engine step, as ``lab3.recorder`` writes them.
    """

    workload: Workload
    arrival_s: list[float]
    queued_s: list[float]
    token_times_s: list[list[float]]
    steps: list[dict[str, Any]]
    preemptions: int
    preempted_requests: int
    num_steps: int
    end_s: float
    counters: dict[str, float] = field(default_factory=dict)


class _Model:
    """Stands in for the model: which tokens a batch yields, and what it costs."""

    def __init__(self, scheduler: Scheduler, output_tokens: Sequence[int]) -> None:
        self.decoding: set[str] = set()
        self.load = StepLoad()
        self.recomputed_tokens = 0
        self.computed_before: dict[str, int] = {}
        self._left = {str(i): tokens for i, tokens in enumerate(output_tokens)}
        self._requests = scheduler.requests

    def execute(self, scheduler: Scheduler, output: SchedulerOutput) -> ModelRunnerOutput:
        """The batch's tokens; leaves its load in ``load``. Called right after ``schedule()``."""
        decoding, requests, left = self.decoding, self._requests, self._left
        load = self.load = StepLoad()
        self.recomputed_tokens = 0
        scheduled = output.num_scheduled_tokens
        sampled: list[list[int]] = []
        contexts = decodes = 0
        for id_, tokens in scheduled.items():
            request = requests[id_]
            if id_ in decoding:
                decodes += tokens
                contexts += request.num_computed_tokens
            else:
                self._add_prefill(load, request, tokens)
            if request.is_prefill_chunk:
                sampled.append([])
                continue
            decoding.add(id_)
            left[id_] -= 1
            sampled.append([EOS_TOKEN_ID if left[id_] == 0 else _TOKEN_ID])
        load.decode_tokens = decodes
        load.decode_requests = len(scheduled) - load.prefill_requests
        load.decode_context_tokens = contexts
        ids = list(scheduled)
        return ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index=dict(zip(ids, range(len(ids)), strict=True)),
            sampled_token_ids=sampled,
        )

    def _add_prefill(self, load: StepLoad, request: Request, tokens: int) -> None:
        end = request.num_computed_tokens
        begin = end - tokens
        load.prefill_tokens += tokens
        load.prefill_requests += 1
        load.prefill_pairs += tokens * (begin + end + 1) / 2
        load.prefill_context_tokens += begin
        lost_end = self.computed_before.get(request.request_id)
        if lost_end is not None:
            self.recomputed_tokens += max(0, min(end, lost_end) - begin)
            if end >= lost_end:
                del self.computed_before[request.request_id]


class SimulatedEngine(Driver):
    """The step driver with arrivals, a step record and a clock moved by a cost model."""

    def __init__(
        self,
        scheduler: Scheduler,
        workload: Workload,
        cost_model: CostModel,
        *,
        seed: int = 0,
        record_steps: bool = True,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self._load_model = _Model(scheduler, workload.output_tokens)
        super().__init__(scheduler, model=self._load_model, step_time=self._step_s)
        self.workload = workload
        self.cost_model = cost_model
        self.steps_log: list[dict[str, Any]] = []
        self.queued_s: list[float] = []
        self.token_times_s: list[list[float]] = [[] for _ in workload.output_tokens]
        self._arrivals_s = [t + cost_model.frontend_s for t in workload.arrival_s]
        self._record = record_steps
        self._progress = progress
        self._overlap = self.depth > 1
        self._noise = random.Random(seed)
        self._num_preempted = self._preempted_in_step = 0
        self._preempted_ids: set[str] = set()
        self._counters: Counter[str] = Counter()
        self._records: deque[dict[str, Any]] = deque()
        self._pool = scheduler.kv_cache_manager.block_pool
        self._usable_blocks = self._pool.num_gpu_blocks - 1
        self._num_finished = 0
        self._watch_preemptions()
        # A policy that measures time must see the virtual one.
        if hasattr(scheduler, "clock"):
            scheduler.clock = lambda: self.now_s

    def simulate(self) -> Simulation:
        """Run the workload to its end.

        Raises:
            SimulationError: a request that can never fit, or no progress.
        """
        self._check_fits()
        arrivals_s, next_one = self._arrivals_s, 0
        # The run makes no cycles worth collecting, and looking for them takes a tenth of the time.
        was_collecting = gc.isenabled()
        gc.disable()
        try:
            while True:
                while next_one < len(arrivals_s) and arrivals_s[next_one] <= self.now_s:
                    self._admit(next_one)
                    next_one += 1
                if not self.has_work:
                    if next_one == len(arrivals_s):
                        break
                    self.now_s = max(self.now_s, arrivals_s[next_one])
                    continue
                self.step()
                # An engine that spins without work to do sees the next arrival in time.
                if self._num_idle_steps and not self.in_flight and next_one < len(arrivals_s):
                    self._num_idle_steps = 0
                    self.now_s = max(self.now_s, arrivals_s[next_one])
        except Stalled as stalled:
            raise SimulationError(
                f"no progress at {self.now_s:.3f} s of the simulation: {stalled}. Give the engine "
                "more --kv-blocks, or shorten the requests"
            ) from None
        finally:
            if was_collecting:
                gc.enable()
        return self._result()

    def _result(self) -> Simulation:
        start_s = self.workload.arrival_s[0]
        return Simulation(
            workload=self.workload,
            arrival_s=list(self.workload.arrival_s),
            queued_s=self.queued_s,
            token_times_s=self.token_times_s,
            steps=self.steps_log,
            preemptions=self._num_preempted,
            preempted_requests=len(self._preempted_ids),
            num_steps=self.num_steps,
            end_s=max(times[-1] for times in self.token_times_s) - start_s,
            counters=dict(self._counters),
        )

    def _admit(self, index: int) -> None:
        workload = self.workload
        prompt = workload.input_tokens[index]
        shared = min(workload.shared_prefix_tokens, prompt)
        predicted = workload.predicted_tokens[index] if workload.predicted_tokens else None
        max_tokens = workload.max_tokens(index)
        params = SamplingParams(
            temperature=0.0,
            max_tokens=max_tokens,
            ignore_eos=max_tokens == workload.output_tokens[index],
            extra_args=None if predicted is None else {"predicted_length": predicted},
        )
        params.update_from_generation_config({}, EOS_TOKEN_ID)
        own_token = _TOKEN_ID + 1 + index
        request = Request(
            request_id=str(index),
            prompt_token_ids=[_SHARED_TOKEN_ID] * shared + [own_token] * (prompt - shared),
            sampling_params=params,
            pooling_params=None,
            arrival_time=self._arrivals_s[index],
        )
        self.queued_s.append(self.now_s)
        self.add(request)

    def _check_fits(self) -> None:
        longest = self.scheduler.max_model_len
        block_size = self.scheduler.block_size
        usable_tokens = self._usable_blocks * block_size
        for index, prompt in enumerate(self.workload.input_tokens):
            tokens = prompt + self.workload.output_tokens[index]
            if tokens > longest:
                raise SimulationError(
                    f"request {index} ({prompt} + {tokens - prompt} tokens) is longer than "
                    f"max_model_len {longest}: clip the workload (--max-model-len, --clip)"
                )
            if tokens > usable_tokens:
                raise SimulationError(
                    f"request {index} ({prompt} + {tokens - prompt} tokens) can never fit: the KV "
                    f"pool holds {self._usable_blocks} blocks of {block_size} = {usable_tokens} "
                    "tokens (one block is vLLM's own). Raise --kv-blocks or clip the workload"
                )

    def _watch_preemptions(self) -> None:
        scheduler, model = self.scheduler, self._load_model
        preempt = scheduler._preempt_request

        def watched(request: Request, *args: Any, **kwargs: Any) -> None:
            id_ = request.request_id
            lost_before = model.computed_before.get(id_, 0)
            model.computed_before[id_] = max(lost_before, request.num_computed_tokens)
            model.decoding.discard(id_)
            self._preempted_in_step += 1
            self._preempted_ids.add(id_)
            preempt(request, *args, **kwargs)

        scheduler._preempt_request = watched

    def _step_s(self, step: Step) -> float:
        load = self._load_model.load
        load.kv_tokens = self._used_blocks() * self.scheduler.block_size
        seconds = self.cost_model.step_s(load, self._overlap)
        if isinstance(self.cost_model, FittedCost) and self.cost_model.ratio_quantiles:
            seconds *= self.cost_model.ratio(self._noise.random())
        return seconds

    def _used_blocks(self) -> int:
        return self._usable_blocks - self._pool.get_num_free_blocks()

    def _schedule(self) -> Step:
        step = super()._schedule()
        self._num_preempted += self._preempted_in_step
        if self._record:
            self._records.append(self._composition(step))
        self._preempted_in_step = 0
        return step

    def _composition(self, step: Step) -> dict[str, Any]:
        load = self._load_model.load
        running, waiting = self.scheduler.get_request_counts()
        return {
            "t_s": round(step.scheduled_s, 6),
            "prefill_tokens": load.prefill_tokens,
            "decode_tokens": load.decode_tokens,
            "prefill_requests": load.prefill_requests,
            "decode_requests": load.decode_requests,
            "running": running,
            "waiting": waiting,
            "kv_blocks": self._used_blocks(),
            "preemptions": self._preempted_in_step,
            "recomputed_tokens": self._load_model.recomputed_tokens,
        }

    def _collect(self, step: Step, replies: dict[int, EngineCoreOutputs]) -> None:
        now_s, times_s = self.now_s, self.token_times_s
        first_ms: list[float] = []
        gaps_s: Counter[float] = Counter()
        for client in replies.values():
            for reply in client.outputs:
                if reply.new_token_ids:
                    times = times_s[int(reply.request_id)]
                    if times:
                        gaps_s[now_s - times[-1]] += 1
                    else:
                        arrived_s = self._arrivals_s[int(reply.request_id)]
                        first_ms.append(round((now_s - arrived_s) * 1e3, 3))
                    times.append(now_s)
                if reply.finish_reason is not None:
                    self._finish(reply.request_id, str(reply.finish_reason))
        if self._record:
            self._log(step, first_ms, gaps_s)

    def _log(self, step: Step, first_ms: list[float], gaps_s: Counter[float]) -> None:
        record = self._records.popleft()
        gaps_ms: Counter[float] = Counter()
        for gap_s, count in gaps_s.items():
            gaps_ms[round(gap_s * 1e3, 3)] += count
        record |= {
            "done_s": round(self.now_s, 6),
            "ttft_ms": first_ms,
            "itl_ms": [list(pair) for pair in gaps_ms.items()],
        }
        counters = getattr(self.scheduler, "counters", self._counters)
        if counters != self._counters:
            self._counters = counters.copy()
            record["counters"] = dict(counters)
        if record["prefill_tokens"] or record["decode_tokens"] or record["preemptions"]:
            self.steps_log.append(record)

    def _finish(self, request_id: str, reason: str) -> None:
        super()._finish(request_id, reason)
        self._load_model.decoding.discard(request_id)
        self._load_model.computed_before.pop(request_id, None)
        self._num_finished += 1
        if self._progress:
            self._progress(self._num_finished, len(self.token_times_s))

"""Schedulers for vLLM V1, each a small subclass: ``--scheduler-cls my_scheduler.SJFScheduler``.

vLLM asks its scheduler before every engine step which requests run and with how many tokens. A
policy here changes what vLLM's own ``schedule()`` sees (the order of a queue, who is eligible,
how many seats or tokens there are) and calls it; it never builds a step itself.

Settings come from ``--additional-config '{"lab3": {"name": value}}'``; each class lists its own.
One file on purpose: the lab hands in one. Each class fits on a screen; sums are in lab3/policy/.
"""

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal

from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.request import Request, RequestStatus

from lab3.base_scheduler import LabScheduler
from lab3.kv_peak import KVPeakFile
from lab3.policy.admission import FuturePeak
from lab3.policy.budget import bounded_budget, linear_budget
from lab3.policy.eviction import VictimRule, eviction_score
from lab3.policy.fairness import VirtualTokens, client_name, jain_index
from lab3.policy.ordering import aged_size
from lab3.policy.prediction import (
    TrackRecord,
    claimed_tokens,
    expected_tokens,
    parse_prediction,
)
from lab3.policy.step_time import StepLoad, StepTimeModel, StepTimer
from lab3.queues import FairQueue, KeyedQueue
from lab3.settings import Settings, require

__all__ = [
    "AdaptiveChunkScheduler",
    "DLASRPTScheduler",
    "DLAScheduler",
    "FairShareScheduler",
    "KVPeakScheduler",
    "PassthroughScheduler",
    "PureDecodeFirstScheduler",
    "SJFScheduler",
    "StepExclusivePrefillFirstScheduler",
]


class PassthroughScheduler(LabScheduler):
    """vLLM's default through our base class: the control that shows what the base itself costs."""


@dataclass(frozen=True)
class PrefillFirstSettings(Settings):
    """``max_prefill_steps``: at most this many prefill steps in a row while something decodes;
    0 is the lab's rule, no limit."""

    max_prefill_steps: int = 0

    def __post_init__(self) -> None:
        require(self.max_prefill_steps >= 0, "max_prefill_steps must be 0 (no limit) or more")


class StepExclusivePrefillFirstScheduler(LabScheduler):
    """Strategy A. While a prompt can be prefilled the step does nothing else; otherwise it decodes.

    A step takes as many whole prompts as the token budget holds. Only a prompt that is larger than
    the whole budget is cut, and its later chunks count as prefill. When no prompt can make
    progress (no seat, no KV blocks) the step decodes, so that seats and blocks come free.
    """

    settings_type = PrefillFirstSettings

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._prefill_steps = 0

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        prefilling = [r for r in self.running if r.is_prefill_chunk]
        decoding = [r for r in self.running if not r.is_prefill_chunk]
        prompt = None if prefilling else self.next_to_admit()
        throttled = self.throttles_prefills(*args, **kwargs)
        if decoding and (throttled or not self._is_prefill_turn(prefilling, prompt)):
            self._prefill_steps = 0
            self.skip_this_step(prefilling)
            with self.no_admission():
                return super().schedule(*args, **kwargs)

        self.skip_this_step(decoding)
        output = self._schedule_whole_prompts(prompt, *args, **kwargs)
        self._prefill_steps += 1
        # Something we did not foresee kept the prompt out: let the next step decode.
        if output.total_num_scheduled_tokens == 0:
            self._prefill_steps = -1
        return output

    def _is_prefill_turn(self, prefilling: list[Request], prompt: Request | None) -> bool:
        limit = self.settings.max_prefill_steps
        if self._prefill_steps < 0 or (limit and self._prefill_steps >= limit):
            return False
        request = prefilling[0] if prefilling else prompt
        return request is not None and self.can_prefill(request)

    def _schedule_whole_prompts(
        self, prompt: Request | None, *args: Any, **kwargs: Any
    ) -> SchedulerOutput:
        config = self.scheduler_config
        may_chunk = config.enable_chunked_prefill
        oversized = prompt and self.uncached_tokens(prompt) > self.max_num_scheduled_tokens
        config.enable_chunked_prefill = bool(may_chunk and oversized)
        try:
            return super().schedule(*args, **kwargs)
        finally:
            config.enable_chunked_prefill = may_chunk


@dataclass(frozen=True)
class PureDecodeFirstSettings(Settings):
    """``fill``: once nothing decodes, admit prompts until seats, KV blocks or the queue run out,
    instead of decoding again after one step."""

    fill: bool = False


class PureDecodeFirstScheduler(LabScheduler):
    """Strategy B-pure-decode: while any running request can decode, a step does nothing else.

    Taken literally (the default) prompts are admitted in the one step in which nothing decodes,
    so with prompts of equal length a batch is only as large as one token budget holds.
    """

    settings_type = PureDecodeFirstSettings

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._filling = False

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        prefilling = [r for r in self.running if r.is_prefill_chunk]
        decoding = [r for r in self.running if not r.is_prefill_chunk]
        throttled = self.throttles_prefills(*args, **kwargs)
        if not any(map(self._can_decode, decoding)):
            self._filling = self.settings.fill
        elif throttled or not self._goes_on_filling(prefilling):
            self._filling &= throttled
            self.skip_this_step(prefilling)
            with self.no_admission():
                return super().schedule(*args, **kwargs)

        self.skip_this_step(decoding)
        output = super().schedule(*args, **kwargs)
        # Something we did not foresee kept the prompts out: let the next step decode.
        self._filling &= output.total_num_scheduled_tokens > 0
        return output

    def _goes_on_filling(self, prefilling: list[Request]) -> bool:
        if not self._filling:
            return False
        request = prefilling[0] if prefilling else self.next_to_admit()
        return request is not None and self.can_prefill(request)

    @staticmethod
    def _can_decode(request: Request) -> bool:
        # With two batches in flight a request's last token may be on its way already.
        in_flight = request.num_output_placeholders
        return request.num_output_tokens + in_flight < request.max_tokens


@dataclass(frozen=True)
class SJFSettings(Settings):
    """``aging_tokens_per_s``: how many tokens shorter a prompt counts per second of waiting;
    0 is the lab's plain SJF, under which a long prompt can starve."""

    aging_tokens_per_s: float = 100.0

    def __post_init__(self) -> None:
        require(self.aging_tokens_per_s >= 0, "aging_tokens_per_s must be 0 or more")


class SJFScheduler(LabScheduler):
    """Strategy B1, shortest job first: the waiting prompt with the fewest tokens goes next.

    Preempted requests stay in front, equal prompts go by arrival.
    """

    settings_type = SJFSettings

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.waiting = KeyedQueue(self._key, self.by_priority)

    def _key(self, request: Request) -> tuple[float, float]:
        aging = self.settings.aging_tokens_per_s
        size = aged_size(request.num_prompt_tokens, request.arrival_time, aging)
        return size, request.arrival_time


@dataclass(frozen=True)
class FairShareSettings(Settings):
    """``input_weight``, ``output_weight``: what a prompt token and an output token cost a client;
    an output token takes a step, so it costs more."""

    input_weight: float = 1.0
    output_weight: float = 2.0

    def __post_init__(self) -> None:
        require(self.input_weight > 0, "input_weight must be above 0")
        require(self.output_weight > 0, "output_weight must be above 0")


class FairShareScheduler(LabScheduler):
    """Strategy B2, fair share: the client that has consumed least goes next.

    The client is ``extra_args["client"]`` (``vllm_xargs.client`` over HTTP); a request without
    one is a client of its own, which makes this the lab's "consumed tokens of each request". The
    counters are those of the Virtual Token Counter (Sheng et al., OSDI'24). They order the
    waiting clients and, when several prompts compete for the step's budget, the running ones.
    """

    settings_type = FairShareSettings

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.tokens = VirtualTokens(self.settings.input_weight, self.settings.output_weight)
        self._clients: dict[str, tuple[str, bool]] = {}
        self.waiting = FairQueue(self._client, self.tokens, self.by_priority)

    def add_request(self, request: Request) -> None:
        if request.request_id not in self._clients:
            extra_args = request.sampling_params and request.sampling_params.extra_args
            name = self._clients[request.request_id] = client_name(extra_args, request.request_id)
            self.tokens.arrive(name[0])
        super().add_request(request)

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        prefilling = len(self._inflight_prefills)
        most_decode_tokens = (len(self.running) - prefilling) * (1 + self.num_spec_tokens)
        if prefilling < 2 and most_decode_tokens <= self.max_num_scheduled_tokens:
            return super().schedule(*args, **kwargs)
        # Decodes before prompts all the same: a chunk would take all their tokens.
        with self.running_in_order(lambda r: (r.is_prefill_chunk, self._count(r))):
            return super().schedule(*args, **kwargs)

    def refresh_counters(self) -> None:
        counts = [self._count(request) for request in self.waiting]
        if served := self.tokens.served_tokens:
            self.counters["jain_index_permille"] = round(1000 * jain_index(served.values()))
        gap_tokens = round(max(counts) - min(counts)) if counts else 0
        self.counters["max_service_gap_tokens"] = max(
            gap_tokens, self.counters["max_service_gap_tokens"]
        )

    def _update_request_with_output(
        self, request: Request, *args: Any, **kwargs: Any
    ) -> tuple[list[int], bool]:
        token_ids, stopped = super()._update_request_with_output(request, *args, **kwargs)
        self.tokens.charge(self._client(request), output_tokens=len(token_ids))
        return token_ids, stopped

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        client, is_named = self._clients.pop(request.request_id)
        self.tokens.leave(client, remember=is_named)
        return super()._free_request(request, *args, **kwargs)

    def _client(self, request: Request) -> str:
        return self._clients[request.request_id][0]

    def _count(self, request: Request) -> float:
        return self.tokens.count(self._client(request))


@dataclass(frozen=True)
class AdaptiveChunkSettings(Settings):
    """``itl_target_ms``: how long a step may take while something decodes.
    ``min_chunk_tokens``: prompt tokens a step may hold in any case.
    ``rule``: "itl" aims at the target, "linear" is the lab's plain rule: large budget when
    nothing runs, ``min_chunk_tokens`` when all seats are taken."""

    itl_target_ms: float = 50.0
    min_chunk_tokens: int = 64
    rule: Literal["itl", "linear"] = "itl"

    def __post_init__(self) -> None:
        require(self.itl_target_ms > 0, "itl_target_ms must be above 0")
        require(self.min_chunk_tokens >= 1, "min_chunk_tokens must be 1 or more")


class AdaptiveChunkScheduler(LabScheduler):
    """Strategy B3: chooses each step's token budget so that decodes need not wait for prompts.

    How long a step takes is learned while serving, from the steps just run; until 20 were seen
    the linear rule holds. A step without decodes takes the full budget.
    """

    settings_type = AdaptiveChunkSettings

    # After so many steps in which no prompt fitted into the lowered budget (chunked prefill is
    # off, or an image can't be cut), one step has the full budget.
    _PATIENCE_STEPS = 8

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.step_time = StepTimeModel()
        self._timer = StepTimer()
        self._steps_without_prefill = 0

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        called_s = self.clock()
        decode_requests = context_tokens = 0
        prefilling = decodes_last = False
        for request in self.running:
            if request.is_prefill_chunk:
                prefilling = True
            else:
                decode_requests += 1
                context_tokens += request.num_computed_tokens
                decodes_last |= prefilling
        decode_tokens = decode_requests * (1 + self.num_spec_tokens)
        load = StepLoad(0, decode_requests, context_tokens)
        full_budget = self.max_num_scheduled_tokens
        self.max_num_scheduled_tokens = self._budget(full_budget, decode_tokens, load)
        # Decodes first: the budget was made for them and a chunk must not take their part.
        decodes_first = self.running_in_order(lambda r: r.is_prefill_chunk)
        try:
            with decodes_first if decodes_last else nullcontext():
                output = super().schedule(*args, **kwargs)
        finally:
            self.max_num_scheduled_tokens = full_budget
        prefill_tokens = max(output.total_num_scheduled_tokens - decode_tokens, 0)
        starving = not prefill_tokens and (prefilling or self._prompt_could_start())
        self._steps_without_prefill = self._steps_without_prefill + 1 if starving else 0
        load = replace(load, prefill_tokens=prefill_tokens)
        self._timer.scheduled(id(output), load, called_s)
        return output

    def update_from_output(
        self, scheduler_output: SchedulerOutput, *args: Any, **kwargs: Any
    ) -> Any:
        results = super().update_from_output(scheduler_output, *args, **kwargs)
        step = self._timer.done(id(scheduler_output), self.clock(), busy=bool(self.running))
        if step and scheduler_output.total_num_scheduled_tokens:
            self._learn(*step)
        return results

    def refresh_counters(self) -> None:
        self.counters["prefill_us_per_token"] = round(1e3 * self.step_time.ms_per_prefill_token)

    def _budget(self, full: int, decode_tokens: int, load: StepLoad) -> int:
        settings = self.settings
        if not decode_tokens or self._steps_without_prefill >= self._PATIENCE_STEPS:
            return full
        if settings.rule == "linear" or not self.step_time.is_ready:
            crowded = len(self.running), self.max_num_active_reqs
            chunk = linear_budget(full, settings.min_chunk_tokens, *crowded) - decode_tokens
        else:
            chunk = self.step_time.prefill_tokens_within(settings.itl_target_ms, load)
        return bounded_budget(decode_tokens, chunk, settings.min_chunk_tokens, full)

    def _prompt_could_start(self) -> bool:
        prompt = self.next_to_admit()
        return prompt is not None and self.can_prefill(prompt)

    def _learn(self, load: StepLoad, step_ms: float) -> None:
        self.step_time.observe(load, step_ms)
        if load.decode_requests:
            self.counters["decode_steps"] += 1
            self.counters["decode_steps_over_target"] += step_ms > self.settings.itl_target_ms


_ENDED_BY_ITSELF = (RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH_CAPPED)


@dataclass(frozen=True)
class DLASettings(Settings):
    """``victim``: who is preempted when KV blocks run out, see ``lab3.policy.eviction``.
    ``admission``: "off" is vLLM's; "reserve" wants free blocks for prompt and predicted output;
    "future_peak" wants the whole batch to fit at its worst moment, see ``lab3.policy.admission``,
    and believes predictions as far as those of finished requests came true.
    """

    victim: VictimRule = "remaining"
    admission: Literal["off", "reserve", "future_peak"] = "reserve"


class DLAScheduler(LabScheduler):
    """DLA, decode-length-aware preemption and admission.

    A request may carry ``extra_args["predicted_length"]`` (``vllm_xargs`` over HTTP), its output
    tokens with any margin already in; ``lab3.policy.prediction`` says how odd values are read
    and what is expected of a request that outlives its prediction.

    The victim is the running request with the largest score; of equals the latest arrival goes.
    A request without a prediction, or past it, counts with what is left of its ``max_tokens``.
    When no running request has a prediction, and under ``--scheduling-policy priority``, vLLM
    chooses: without predictions every step is vLLM's. A request that would be held back is
    admitted all the same when nothing runs: a wrong prediction can't stop the engine.
    """

    settings_type = DLASettings

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._predicted: dict[str, int] = {}
        self._track_record = TrackRecord()
        self._choosing_victim = False
        self._peak: FuturePeak | None = None
        self._allocate = self.kv_cache_manager.allocate_slots
        self.kv_cache_manager.allocate_slots = self._allocate_slots

    def add_request(self, request: Request) -> None:
        extra_args = (request.sampling_params and request.sampling_params.extra_args) or {}
        if "predicted_length" in extra_args:
            predicted = parse_prediction(extra_args["predicted_length"], request.max_tokens)
            self.counters["predictions" if predicted else "bad_predictions"] += 1
            if predicted:
                self._predicted[request.request_id] = predicted
                self.counters["predicted_tokens"] += predicted
        super().add_request(request)

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        self._peak = None
        self._choosing_victim = self._must_choose_victim()
        # Whoever is last gives way. Decodes come before prompts, whose chunks would take their
        # tokens; `_allocate_slots` finds the victim among both.
        try:
            with self._victim_last() if self._choosing_victim else nullcontext():
                return super().schedule(*args, **kwargs)
        finally:
            self._choosing_victim = False

    def _must_choose_victim(self) -> bool:
        return (
            self.settings.victim != "upstream"
            and not self.by_priority
            and self.blocks_may_run_out()
            and any(r.request_id in self._predicted for r in self.running)
        )

    def _victim_last(self) -> AbstractContextManager[None]:
        return self.running_in_order(lambda r: (r.is_prefill_chunk, *self._eviction_key(r)))

    def _allocate_slots(
        self, request: Request, num_new_tokens: int, **kwargs: Any
    ) -> KVCacheBlocks | None:
        is_running = request.status == RequestStatus.RUNNING
        if not is_running and not self._admit(request, num_new_tokens, kwargs):
            self.counters["held_back"] += 1
            return None
        blocks = self._allocate(request, num_new_tokens, **kwargs)
        if blocks is None and self._choosing_victim and is_running:
            self._put_victim_last(request)
        elif blocks is not None and self._peak and not is_running:
            to_come = self._expected(request, self._track_record.used_share)
            self._peak.add(request.num_tokens, to_come)
        return blocks

    def _put_victim_last(self, request: Request) -> None:
        # Only among those that this step has not scheduled yet: the others' tokens are given out.
        running, at = self.running, self.running.index(request) + 1
        if at < len(running):
            victim = max(range(at, len(running)), key=lambda i: self._eviction_key(running[i]))
            running.append(running.pop(victim))

    def _admit(self, request: Request, num_new_tokens: int, kwargs: dict[str, Any]) -> bool:
        """Whether ``request`` may ask for blocks now; "reserve" makes it leave some free."""
        predicted = request.request_id in self._predicted
        if self.settings.admission == "off" or not predicted or not self.running:
            return True
        if self.settings.admission == "future_peak":
            if self._peak is None:
                self._peak = self._future_peak()
            to_come = self._expected(request, self._track_record.used_share)
            peak_tokens = self._peak.peak_with(request.num_tokens, to_come)
            return peak_tokens <= self.usable_kv_tokens()
        computed = request.num_computed_tokens + sum(
            kwargs.get(key, 0)
            for key in ("num_new_computed_tokens", "num_external_computed_tokens")
        )
        end = min(request.num_tokens + self._expected(request), self.max_model_len)
        growth_blocks = self.num_blocks(end) - self.num_blocks(computed + num_new_tokens)
        kwargs["reserved_blocks"] = kwargs.get("reserved_blocks", 0) + max(growth_blocks, 0)
        return True

    def _future_peak(self) -> FuturePeak:
        used_share = self._track_record.used_share
        unfinished_prefill = sum(
            r.num_tokens - r.num_computed_tokens for r in self._inflight_prefills
        )
        return FuturePeak(
            [r.num_tokens for r in self.running],
            [self._expected(r, used_share) for r in self.running],
            used_tokens=self.used_kv_tokens() + unfinished_prefill,
        )

    def _expected(self, request: Request, used_share: float = 1.0) -> int:
        predicted = math.ceil(used_share * self._predicted.get(request.request_id, 0))
        return expected_tokens(predicted, request.num_output_tokens, request.max_tokens)

    def _eviction_key(self, request: Request) -> tuple[float, float]:
        predicted = self._predicted.get(request.request_id)
        to_come = claimed_tokens(predicted, request.num_output_tokens, request.max_tokens)
        score = eviction_score(self.settings.victim, to_come, request.num_computed_tokens)
        return score, request.arrival_time

    def _preempt_request(self, *args: Any, **kwargs: Any) -> None:
        rule = self.settings.victim if self._choosing_victim else "upstream"
        self.counters[f"victims_{rule}"] += 1
        super()._preempt_request(*args, **kwargs)

    def refresh_counters(self) -> None:
        if self._track_record.answers:
            self.counters["predictions_used_permille"] = round(1e3 * self._track_record.used_share)

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        predicted = self._predicted.pop(request.request_id, None)
        if predicted is not None:
            self.counters["overruns"] += request.num_output_tokens > predicted
            if request.status in _ENDED_BY_ITSELF:
                self._track_record.add(predicted, request.num_output_tokens)
        return super()._free_request(request, *args, **kwargs)


@dataclass(frozen=True)
class DLASRPTSettings(DLASettings):
    """DLA's settings with other defaults, and ``aging_tokens_per_s`` as in SJF."""

    victim: VictimRule = "remaining_per_context"
    admission: Literal["off", "reserve", "future_peak"] = "future_peak"
    aging_tokens_per_s: float = 100.0

    def __post_init__(self) -> None:
        require(self.aging_tokens_per_s >= 0, "aging_tokens_per_s must be 0 or more")


class DLASRPTScheduler(DLAScheduler):
    """DLA that also serves the shortest first: prompt plus predicted output, aged.

    A request without a prediction counts with the mean of the predictions seen so far; without
    any prediction that is the order of prompt lengths.
    """

    settings_type = DLASRPTSettings

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.waiting = KeyedQueue(self._key, self.by_priority)

    def _key(self, request: Request) -> tuple[float, float]:
        mean = self.counters["predicted_tokens"] / max(self.counters["predictions"], 1)
        output_tokens = self._predicted.get(request.request_id, mean)
        size = request.num_prompt_tokens + output_tokens
        size = aged_size(size, request.arrival_time, self.settings.aging_tokens_per_s)
        return size, request.arrival_time


@dataclass(frozen=True)
class KVPeakSettings(Settings):
    """``kv_peak_file``: JSON file that receives the record; empty keeps none."""

    kv_peak_file: str = ""


class KVPeakScheduler(LabScheduler):
    """Schedules as vLLM does and records the KV cache over time, see ``lab3.kv_peak``."""

    settings_type = KVPeakSettings

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        path = self.settings.kv_peak_file
        pool_blocks = self.kv_cache_manager.block_pool.num_gpu_blocks - 1
        self._peak_file = KVPeakFile(path, self.block_size, pool_blocks) if path else None

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        output = super().schedule(*args, **kwargs)
        if self._peak_file and output.total_num_scheduled_tokens:
            tokens = sum(request.num_computed_tokens for request in self.running)
            self._peak_file.add(tokens, self.used_kv_blocks(), len(self.running))
        return output

    def update_from_output(self, *args: Any, **kwargs: Any) -> Any:
        results = super().update_from_output(*args, **kwargs)
        # Before the last answer leaves the engine: who gets it may read the file at once.
        if self._peak_file and not self.has_unfinished_requests():
            self._peak_file.write()
        return results

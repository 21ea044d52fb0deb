"""DLA: the scheduler that knows, or guesses, how long an output will be."""

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal

from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.request import Request, RequestStatus

from lab3.base_scheduler import LabScheduler
from lab3.policy.admission import FuturePeak
from lab3.policy.eviction import VictimRule, eviction_score
from lab3.policy.ordering import aged_size
from lab3.policy.prediction import (
    claimed_tokens,
    expected_tokens,
    expected_tokens_of_all,
    parse_prediction,
)
from lab3.queues import KeyedQueue
from lab3.settings import Settings, require


@dataclass(frozen=True)
class DLASettings(Settings):
    """``victim``: who is preempted when KV blocks run out, see ``lab3.policy.eviction``.
    ``admission``: "off" is vLLM's; "reserve" wants free blocks for prompt and predicted output;
    "future_peak" wants the whole batch to fit at its worst moment, see ``lab3.policy.admission``.
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
        order = self.running_in_order(lambda r: (r.is_prefill_chunk, *self._eviction_key(r)))
        try:
            with order if self._choosing_victim else nullcontext():
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
            self._peak.add(request.num_tokens, self._expected(request))
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
            peak_tokens = self._peak.peak_with(request.num_tokens, self._expected(request))
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
        running = self.running
        remaining = expected_tokens_of_all(
            [self._predicted.get(r.request_id, 0) for r in running],
            [r.num_output_tokens for r in running],
            [r.max_tokens for r in running],
        )
        unfinished_prefill = sum(
            [r.num_tokens - r.num_computed_tokens for r in running if r.is_prefill_chunk]
        )
        return FuturePeak(
            [r.num_tokens for r in running],
            remaining,
            used_tokens=self.used_kv_tokens() + unfinished_prefill,
        )

    def _expected(self, request: Request) -> int:
        predicted = self._predicted.get(request.request_id, 0)
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

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        predicted = self._predicted.pop(request.request_id, None)
        self.counters["overruns"] += predicted is not None and (
            request.num_output_tokens > predicted
        )
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

"""Schedulers for vLLM V1, each a small subclass: ``--scheduler-cls my_scheduler.SJFScheduler``.

vLLM asks its scheduler before every engine step which requests run and with how many tokens. A
policy here changes what vLLM's own ``schedule()`` sees (the order of a queue, who is eligible,
how many seats or tokens there are) and calls it; it never builds a step itself.

Settings come from ``--additional-config '{"lab3": {"name": value}}'``; each class lists its own.
"""

from dataclasses import dataclass
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.request import Request

from lab3.base_scheduler import LabScheduler
from lab3.policy.ordering import aged_size
from lab3.queues import KeyedQueue
from lab3.settings import Settings, require


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
        if decoding and not self._is_prefill_turn(prefilling, prompt):
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
        if request is None:
            return False
        tokens = self.uncached_tokens(request)
        if prefilling or not self.scheduler_reserve_full_isl:
            tokens = min(tokens, self.max_num_scheduled_tokens)
        return self.has_room_for(request, tokens)

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

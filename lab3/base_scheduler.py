"""One base class for every scheduler of this repository."""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from vllm.config import VllmConfig
from vllm.logger import init_logger
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.request_queue import SchedulingPolicy
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request, RequestStatus

from lab3.recorder import StepRecorder
from lab3.settings import Settings

logger = init_logger("vllm.lab3")


class LabScheduler(AsyncScheduler):
    """vLLM's scheduler with settings and a step recorder; schedules exactly as vLLM does.

    vLLM runs ``AsyncScheduler`` on a GPU and ``Scheduler`` on a CPU. A policy built on the wrong
    one of the two either loses the overlap of scheduling and execution or breaks; this base is an
    ``AsyncScheduler`` that steps aside when async scheduling is off, so one policy class serves
    both and a comparison measures the policy, not its base.

    Subclasses name their settings in ``settings_type`` and usually override ``schedule`` only.
    """

    settings_type: type[Settings] = Settings

    def __new__(cls, vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> "LabScheduler":
        settings = cls.parse_settings(_lab3_config(vllm_config))
        if not settings.disabled or cls is LabScheduler:
            return super().__new__(cls)
        # Switched off: build the base itself, so that no line of the policy can run.
        upstream = super().__new__(LabScheduler)
        upstream.settings_type = cls.settings_type
        upstream.__init__(vllm_config, *args, **kwargs)
        return upstream

    def __init__(self, vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(vllm_config, *args, **kwargs)
        self.settings = self.settings_type.parse(_lab3_config(vllm_config), type(self).__name__)
        self.counters: Counter[str] = Counter()
        self._skipping_at_step = -1
        if self.settings.record:
            StepRecorder(self.settings.record, self).attach()
        is_async = self.scheduler_config.async_scheduling
        logger.info(
            "lab3 scheduler: %s.%s base=%s async_scheduling=%s settings=%s",
            type(self).__module__,
            type(self).__name__,
            "AsyncScheduler" if is_async else "Scheduler",
            is_async,
            self.settings,
        )

    @classmethod
    def parse_settings(cls, raw: Any) -> Settings:
        """This class's settings from ``raw``; raises ValueError with one clear line."""
        return cls.settings_type.parse(raw, cls.__name__)

    @property
    def by_priority(self) -> bool:
        """Whether vLLM runs with ``--scheduling-policy priority``."""
        return self.policy == SchedulingPolicy.PRIORITY

    def skip_this_step(self, requests: Iterable[Request]) -> None:
        """Leave running requests out of the next ``schedule()`` only.

        They keep seat, blocks and place in ``running``: everything that vLLM counts there
        (seats, watermark, long-prefill threshold, victims) stays right.
        """
        # vLLM raises current_step on entry and skips requests that are not yet eligible.
        eligible_step = self.current_step + 2
        for request in requests:
            request.next_decode_eligible_step = max(
                request.next_decode_eligible_step, eligible_step
            )
            self._skipping_at_step = self.current_step + 1

    @contextmanager
    def no_admission(self) -> Iterator[None]:
        """Within this block ``schedule()`` admits nobody from the waiting queue."""
        seats = self.max_num_active_reqs
        self.max_num_active_reqs = 0
        try:
            yield
        finally:
            self.max_num_active_reqs = seats

    def next_to_admit(self) -> Request | None:
        """The waiting request that ``schedule()`` would try first, None if there is no seat."""
        seats_taken = len(self.running) + self.num_waiting_for_streaming_input
        if seats_taken >= self.max_num_active_reqs:
            return None
        queues = [self.kv_holding_waiting]
        if self._pause_state == PauseState.UNPAUSED:
            queues.append(self.waiting)
        return next(filter(self._is_ready, itertools.chain(*queues)), None)

    def uncached_tokens(self, request: Request) -> int:
        """Tokens still to compute before ``request`` decodes, after prefix-cache hits."""
        computed = request.num_computed_tokens
        if computed == 0:
            _, computed, _ = self.kv_cache_manager.get_computed_blocks(request)
        return request.num_tokens - computed

    def has_room_for(self, request: Request, num_new_tokens: int) -> bool:
        """Whether the KV pool holds ``num_new_tokens`` more of ``request`` without preemption."""
        manager = self.kv_cache_manager
        cached, computed = manager.empty_kv_cache_blocks, request.num_computed_tokens
        if computed == 0:
            cached, computed, _ = manager.get_computed_blocks(request)
        num_tokens = min(computed + num_new_tokens + self.num_lookahead_tokens, self.max_model_len)
        needed_blocks = manager.coordinator.get_num_blocks_to_allocate(
            request_id=request.request_id,
            num_tokens=num_tokens,
            new_computed_blocks=cached.blocks,
            num_encoder_tokens=0,
            total_computed_tokens=computed,
            num_local_computed_tokens=computed,
            num_tokens_main_model=num_tokens,
            prefill_end=max(request.num_prompt_tokens, request.num_tokens - 1),
        )
        if request.status != RequestStatus.RUNNING and self.running:
            needed_blocks += manager.watermark_blocks
        return needed_blocks <= manager.block_pool.get_num_free_blocks()

    def _handle_blocked_waiting_request(self, request: Request) -> bool:
        # vLLM holds max_loras against the requests scheduled in this step; those we skip keep
        # their adapter and run in the next one, so they must count too.
        if self._skipping_at_step == self.current_step and not self._has_adapter_room(request):
            return False
        return super()._handle_blocked_waiting_request(request)

    def _is_ready(self, request: Request) -> bool:
        stale = request.num_stale_output_tokens and not request.drop_stale_output
        return (
            not stale
            and self._has_adapter_room(request)
            and super()._handle_blocked_waiting_request(request)
        )

    def _has_adapter_room(self, request: Request) -> bool:
        if not (self.lora_config and request.lora_request):
            return True
        adapters = {r.lora_request.lora_int_id for r in self.running if r.lora_request}
        return len(adapters | {request.lora_request.lora_int_id}) <= self.lora_config.max_loras

    def _update_after_schedule(self, scheduler_output: SchedulerOutput) -> None:
        self._upstream()._update_after_schedule(self, scheduler_output)

    def _update_request_with_output(
        self, request: Request, *args: Any, **kwargs: Any
    ) -> tuple[list[int], bool]:
        return self._upstream()._update_request_with_output(self, request, *args, **kwargs)

    def _upstream(self) -> type[Scheduler]:
        return AsyncScheduler if self.scheduler_config.async_scheduling else Scheduler


def _lab3_config(vllm_config: VllmConfig) -> Any:
    additional = vllm_config.additional_config
    return additional.get("lab3") if isinstance(additional, dict) else None

"""One base class for every scheduler of this repository."""

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from vllm.config import VllmConfig
from vllm.logger import init_logger
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.request_queue import SchedulingPolicy
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.metrics.stats import SchedulerStats
from vllm.v1.request import Request, RequestStatus

from lab3.recorder import StepRecorder
from lab3.settings import Settings

logger = init_logger("vllm.lab3")

# As often as vLLM logs its own engine statistics, if there is anything new to say.
COUNTERS_LOG_INTERVAL_S = 10.0
COUNTERS_REFRESH_STEPS = 64


class LabScheduler(AsyncScheduler):
    """vLLM's scheduler with settings and a step recorder; schedules exactly as vLLM does.

    vLLM runs ``AsyncScheduler`` on a GPU and ``Scheduler`` on a CPU. A policy built on the wrong
    one of the two either loses the overlap of scheduling and execution or breaks; this base is an
    ``AsyncScheduler`` that steps aside when async scheduling is off, so one policy class serves
    both and a comparison measures the policy, not its base.

    Subclasses name their settings in ``settings_type`` and usually override ``schedule`` only.
    """

    settings_type: type[Settings] = Settings
    clock = staticmethod(time.monotonic)  # seconds; a simulator puts its own here

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
        self._counters_logged: Counter[str] = Counter()
        self._counters_due_s = 0.0
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

    def throttles_prefills(self, throttle_prefills: bool = False) -> bool:
        """Whether a ``schedule()`` with these arguments holds all prompts back.

        Data-parallel engines prefill in the same steps, unless prompts have piled up.
        """
        return throttle_prefills and not self.prefill_capacity_bound

    @contextmanager
    def no_admission(self) -> Iterator[None]:
        """Within this block ``schedule()`` admits nobody from the waiting queue."""
        seats = self.max_num_active_reqs
        self.max_num_active_reqs = 0
        try:
            yield
        finally:
            self.max_num_active_reqs = seats

    @contextmanager
    def running_in_order(self, key: Callable[[Request], Any]) -> Iterator[None]:
        """Within this block ``running`` is sorted by ``key``; afterwards by admission again.

        The order decides who gets tokens first when the budget is short and, unless vLLM runs by
        priority, who is preempted first when KV blocks are short: the last one.
        """
        place = {request: index for index, request in enumerate(self.running)}
        self.running = sorted(self.running, key=key)
        try:
            yield
        finally:
            self.running.sort(key=lambda request: place.get(request, len(place)))

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

    def blocks_may_run_out(self) -> bool:
        """False only if the next step's running requests get all their blocks for certain."""
        free_blocks = self.kv_cache_manager.block_pool.get_num_free_blocks()
        decode_tokens = 1 + self.num_spec_tokens + self.num_lookahead_tokens
        chunk_blocks = self.num_blocks(self.max_num_scheduled_tokens) + len(self.running)
        if free_blocks >= chunk_blocks + self.num_blocks(decode_tokens) * len(self.running):
            return False
        size, groups = self.block_size, self.kv_cache_manager.num_kv_cache_groups
        needed_blocks = 0
        for request in self.running:
            if request.is_prefill_chunk:
                return True
            free_tokens = -request.num_computed_tokens % size
            needed_blocks -= (free_tokens - decode_tokens) // size
        return free_blocks < needed_blocks * groups

    def num_blocks(self, num_tokens: int) -> int:
        """KV blocks that ``num_tokens`` tokens of one request take."""
        groups = self.kv_cache_manager.num_kv_cache_groups
        return groups * -(-num_tokens // self.block_size)

    def used_kv_blocks(self) -> int:
        """KV blocks that requests hold."""
        pool = self.kv_cache_manager.block_pool
        # Block 0 is vLLM's null block: never free, never used.
        return pool.num_gpu_blocks - 1 - pool.get_num_free_blocks()

    def used_kv_tokens(self) -> int:
        """Tokens that the blocks held by requests have room for."""
        return self.used_kv_blocks() * self.block_size // self.kv_cache_manager.num_kv_cache_groups

    def usable_kv_tokens(self) -> int:
        """Tokens that the whole KV pool has room for, less vLLM's watermark."""
        manager = self.kv_cache_manager
        blocks = manager.block_pool.num_gpu_blocks - 1 - manager.watermark_blocks
        return blocks * self.block_size // manager.num_kv_cache_groups

    def can_prefill(self, request: Request) -> bool:
        """Whether the KV pool lets ``request`` start its prefill, or go on with it, right now."""
        tokens = self.uncached_tokens(request)
        if request.status == RequestStatus.RUNNING or not self.scheduler_reserve_full_isl:
            tokens = min(tokens, self.max_num_scheduled_tokens)
        return self.has_room_for(request, tokens)

    def refresh_counters(self) -> None:
        """Bring counters up to date that cost too much to keep so; called before they are read."""

    def make_stats(self, *args: Any, **kwargs: Any) -> SchedulerStats | None:
        # vLLM calls this once after every step.
        if self.current_step % COUNTERS_REFRESH_STEPS == 0:
            self.refresh_counters()
        if self.clock() >= self._counters_due_s:
            self._log_counters()
        return super().make_stats(*args, **kwargs)

    def shutdown(self) -> None:
        self._log_counters()
        super().shutdown()

    def _log_counters(self) -> None:
        self._counters_due_s = self.clock() + COUNTERS_LOG_INTERVAL_S
        self.refresh_counters()
        if self.counters != self._counters_logged:
            self._counters_logged = self.counters.copy()
            logger.info("lab3 counters: %s", dict(sorted(self.counters.items())))

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

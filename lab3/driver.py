"""Engine steps on a scheduler without a model, in EngineCore's order, on a virtual clock.

driver = Driver(create_scheduler("my_scheduler.SJFScheduler", num_blocks=64))
driver.add(*create_requests(20, prompt_tokens=100, output_tokens=16))
driver.run()
driver.tokens["0"]                       # what request "0" was sent, token by token
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from lab3.engine import StubModel


class Stalled(RuntimeError):
    """Requests exist, nothing is in flight, and no step schedules a token any more."""


@dataclass(slots=True)
class Step:
    """One batch. ``tokens``: what its requests were sent, filled when the batch is done.

    Times are the driver's clock in seconds: when ``schedule()`` was called, and when the batch's
    output was processed.
    """

    output: SchedulerOutput
    scheduled_s: float
    done_s: float = 0.0
    tokens: dict[str, list[int]] = field(default_factory=dict)
    finished_ids: list[str] = field(default_factory=list)
    result: ModelRunnerOutput | None = None


class Observer:
    """Hooks around every engine step; override what you need."""

    def before_schedule(self, driver: "Driver") -> None: ...

    def after_schedule(self, driver: "Driver", step: Step) -> None: ...

    def after_execute(self, driver: "Driver", step: Step) -> None: ...

    def after_update(self, driver: "Driver", step: Step) -> None: ...


class Driver:
    """Runs engine steps in the order of EngineCore.

    ``depth`` 1 is ``EngineCore.step``, 2 is ``EngineCore.step_with_batch_queue``: a second batch
    is scheduled before the first one's output is known. The default follows the scheduler's
    ``async_scheduling``. ``step_time(step)`` gives the seconds that a batch takes and moves the
    virtual clock ``now_s``; batches run one after the other, so with two in flight the second
    starts when the first ends.

    Raises ``Stalled`` after ``stall_steps`` steps in a row that could have scheduled something
    and did not.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        depth: int | None = None,
        model: StubModel | None = None,
        step_time: Callable[[Step], float] | None = None,
        observers: Sequence[Observer] = (),
        stall_steps: int = 20,
    ) -> None:
        self.scheduler = scheduler
        self.depth = depth or (2 if scheduler.scheduler_config.async_scheduling else 1)
        self.model = model or StubModel()
        self.step_time = step_time
        self.observers = list(observers)
        self.stall_steps = stall_steps
        self.now_s = 0.0
        self.num_steps = 0
        self.in_flight: deque[Step] = deque()
        self.tokens: dict[str, list[int]] = {}
        self.unfinished: set[str] = set()
        self.finished: dict[str, str] = {}
        self._device_free_s = 0.0
        self._num_idle_steps = 0
        self._hasher = _block_hasher(scheduler)

    def add(self, *requests: Request) -> None:
        """Hand requests to the scheduler, as the engine does when they arrive."""
        for request in requests:
            if self._hasher and request._block_hasher is None:
                request._block_hasher = self._hasher
                request.update_block_hashes()
            self.tokens[request.request_id] = []
            self.unfinished.add(request.request_id)
            self.scheduler.add_request(request)

    def abort(self, *request_ids: str) -> None:
        """End requests as a client that disconnects does; unknown ids are ignored."""
        for request in self.scheduler.finish_requests(request_ids, RequestStatus.FINISHED_ABORTED):
            self._finish(request.request_id, "abort")

    def pause(self, state: PauseState) -> None:
        """Set vLLM's pause state without its log line."""
        self.scheduler._pause_state = state

    @property
    def has_work(self) -> bool:
        return bool(self.in_flight) or self.scheduler.has_requests()

    def step(self) -> Step | None:
        """One engine iteration; the batch whose output was processed, or None if none was."""
        scheduler, in_flight = self.scheduler, self.in_flight
        if scheduler.has_requests():
            step = self._schedule()
            in_flight.append(step)
            ran = step.output.total_num_scheduled_tokens > 0
            if len(in_flight) < self.depth and (ran or scheduler.has_requests()):
                return None
        return self._update(in_flight.popleft()) if in_flight else None

    def run(self, max_steps: int = 100_000) -> int:
        """Step until nothing is left to do; returns the number of steps.

        Raises RuntimeError if that takes more than ``max_steps``.
        """
        start = self.num_steps
        while self.has_work:
            if self.num_steps - start >= max_steps:
                raise RuntimeError(f"not done after {max_steps} steps: {self.describe()}")
            self.step()
        return self.num_steps - start

    def steps(self) -> Iterator[Step]:
        """Step until nothing is left to do, yielding each processed batch."""
        while self.has_work:
            if (step := self.step()) is not None:
                yield step

    def describe(self) -> str:
        """One line on where the scheduler stands: queues, head of the queue, free blocks."""
        scheduler = self.scheduler
        pool = scheduler.kv_cache_manager.block_pool
        line = (
            f"{len(scheduler.running)} running, {len(scheduler.waiting)} waiting, "
            f"{pool.get_num_free_blocks()} of {pool.num_gpu_blocks - 1} KV blocks free"
        )
        if head := next(iter(scheduler.waiting), None):
            needed_blocks = -(-head.num_tokens // scheduler.block_size)
            line += (
                f"; head of the queue: request {head.request_id} ({head.status.name}), "
                f"{head.num_tokens} tokens = {needed_blocks} blocks"
            )
        return line

    def _schedule(self) -> Step:
        for observer in self.observers:
            observer.before_schedule(self)
        self.num_steps += 1
        output = self.scheduler.schedule(False)
        step = Step(output, scheduled_s=self.now_s)
        for observer in self.observers:
            observer.after_schedule(self, step)
        step.result = self.model.execute(self.scheduler, output)
        for observer in self.observers:
            observer.after_execute(self, step)
        if self.step_time is not None and output.total_num_scheduled_tokens:
            start_s = max(self.now_s, self._device_free_s)
            self._device_free_s = start_s + self.step_time(step)
        step.done_s = max(self.now_s, self._device_free_s)
        self._watch_progress(output)
        return step

    def _update(self, step: Step) -> Step:
        self.now_s = max(self.now_s, step.done_s)
        replies = self.scheduler.update_from_output(step.output, step.result)
        self._collect(step, replies)
        self._give_drafts(step)
        for observer in self.observers:
            observer.after_update(self, step)
        return step

    def _collect(self, step: Step, replies: dict[int, EngineCoreOutputs]) -> None:
        for client in replies.values():
            for reply in client.outputs:
                step.tokens[reply.request_id] = reply.new_token_ids
                self.tokens[reply.request_id].extend(reply.new_token_ids)
                if reply.finish_reason is not None:
                    step.finished_ids.append(reply.request_id)
                    self._finish(reply.request_id, str(reply.finish_reason))

    def _finish(self, request_id: str, reason: str) -> None:
        self.unfinished.discard(request_id)
        self.finished[request_id] = reason

    def _give_drafts(self, step: Step) -> None:
        num_drafts = self.scheduler.num_spec_tokens
        # Under async scheduling the scheduler writes placeholders for the drafts itself.
        if num_drafts and not self.scheduler.scheduler_config.async_scheduling:
            ids = [id_ for id_, tokens in step.tokens.items() if tokens]
            drafts = [[0] * num_drafts for _ in ids]
            self.scheduler.update_draft_token_ids(DraftTokenIds(ids, drafts))

    def _watch_progress(self, output: SchedulerOutput) -> None:
        idle = (
            output.total_num_scheduled_tokens == 0
            and not any(s.output.total_num_scheduled_tokens for s in self.in_flight)
            and self.scheduler.get_num_unfinished_requests() > 0
        )
        self._num_idle_steps = self._num_idle_steps + 1 if idle else 0
        if self._num_idle_steps >= self.stall_steps:
            raise Stalled(
                f"no token scheduled for {self.stall_steps} steps while requests wait: "
                + self.describe()
            )


def _block_hasher(scheduler: Scheduler) -> Callable[[Request], list] | None:
    """What prefix caching needs to recognise a request's blocks; None when it is off."""
    cache_config = scheduler.cache_config
    if not cache_config.enable_prefix_caching:
        return None
    hash_fn = get_hash_fn_by_name(cache_config.prefix_caching_hash_algo)
    init_none_hash(hash_fn)
    return get_request_block_hasher(scheduler.block_size, hash_fn)

"""What must hold after every engine step of every scheduler, one law a function.

    driver = Driver(scheduler, observers=[Invariants()])

checks all of them at every step; a broken law raises ``InvariantError`` with its name. ``Runner``
keeps the books that a model runner keeps, from ``SchedulerOutput`` alone, so that a scheduler is
held to what it tells the workers and not to its own view.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import NewRequestData, SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request, RequestStatus

from lab3.driver import Driver, Observer, Step


class InvariantError(AssertionError):
    """A law of this module is broken; the message starts with the law's name."""

    def __init__(self, law: str, detail: object) -> None:
        super().__init__(f"{law}: {detail}")


def token_budget(scheduler: Scheduler, output: SchedulerOutput) -> None:
    """A step schedules at least one token of each request in it, and at most the budget in all."""
    tokens = output.num_scheduled_tokens
    total, budget = sum(tokens.values()), scheduler.scheduler_config.max_num_batched_tokens
    if total != output.total_num_scheduled_tokens or total > budget:
        raise InvariantError("token budget", f"{tokens} add up to {total}, budget {budget}")
    if min(tokens.values(), default=1) <= 0:
        raise InvariantError("token budget", f"a request without tokens in {tokens}")


def seats(scheduler: Scheduler) -> None:
    """At most ``max_num_active_seqs`` (else ``max_num_seqs``) requests run.

    A policy that lowers the limit within a step must have restored it.
    """
    config = scheduler.scheduler_config
    limit = config.max_num_active_seqs or config.max_num_seqs
    if scheduler.max_num_active_reqs != limit:
        raise InvariantError("seats", f"limit left at {scheduler.max_num_active_reqs}, not {limit}")
    if len(scheduler.running) > limit:
        raise InvariantError("seats", f"{len(scheduler.running)} running, {limit} seats")


def kv_conservation(scheduler: Scheduler) -> None:
    """Every KV block is free or held by a live request, and held twice only when cached.

    Each request holds blocks for all tokens computed so far.
    """
    manager = scheduler.kv_cache_manager
    pool = manager.block_pool
    blocks, num_held = {}, 0
    for id_, held in manager.coordinator.single_type_managers[0].req_to_blocks.items():
        request = scheduler.requests.get(id_)
        if request is None and held:
            raise InvariantError("KV conservation", f"finished request {id_} holds blocks")
        if request and len(held) * scheduler.block_size < request.num_computed_tokens:
            raise InvariantError(
                "KV conservation",
                f"request {id_}: {len(held)} blocks for {request.num_computed_tokens} tokens",
            )
        num_held += len(held)
        blocks.update((block.block_id, block) for block in held)
    num_used = pool.num_gpu_blocks - 1 - pool.get_num_free_blocks()
    if len(blocks) != num_used:
        raise InvariantError("KV conservation", f"{len(blocks)} blocks held, {num_used} not free")
    num_references = sum(block.ref_cnt for block in blocks.values())
    if num_references != num_held:
        raise InvariantError(
            "KV conservation", f"{num_held} holders of blocks, {num_references} references"
        )


def requests_conserved(scheduler: Scheduler, unfinished: Collection[str]) -> None:
    """Each unfinished request is in exactly one queue or running, with the status of its place."""
    law = "requests conserved"
    waiting = [*scheduler.waiting, *scheduler.kv_holding_waiting]
    places = [r.request_id for r in waiting]
    places += [r.request_id for r in scheduler.running]
    found = set(places)
    if len(found) != len(places):
        raise InvariantError(law, f"a request is in two places: {sorted(places)}")
    if not found == scheduler.requests.keys() == unfinished:
        raise InvariantError(law, f"lost or left over: {found ^ set(unfinished)}")
    for request in scheduler.running:
        if request.status != RequestStatus.RUNNING:
            raise InvariantError(law, f"{request.request_id} runs as {request.status.name}")
    for request in waiting:
        if request.status == RequestStatus.RUNNING or request.is_finished():
            raise InvariantError(law, f"{request.request_id} waits as {request.status.name}")
    if not scheduler.deferred_waiting.issubset(waiting):
        raise InvariantError(law, "deferred_waiting names a request that does not wait")


def progress(driver: Driver, output: SchedulerOutput) -> None:
    """A step without tokens means: nothing could run.

    That is so when earlier batches are in flight, when scheduling is paused, when the step had to
    preempt, or when all that waits waits for something outside (a grammar, remote KV).
    """
    scheduler = driver.scheduler
    if (
        output.total_num_scheduled_tokens
        or output.preempted_req_ids
        or any(step.output.total_num_scheduled_tokens for step in driver.in_flight)
        or scheduler.pause_state == PauseState.PAUSED_ALL
    ):
        return
    able = [*scheduler.running, *scheduler.kv_holding_waiting]
    if scheduler.pause_state == PauseState.UNPAUSED:
        able += scheduler.waiting
    if any(not Scheduler._is_blocked_waiting_status(r.status) for r in able):
        raise InvariantError("progress", f"a step without tokens, but {driver.describe()}")


def purity(decoding_before: Collection[str], output: SchedulerOutput) -> None:
    """Strategy A: a step is all prefill or all decode.

    ``decoding_before``: ids of the running requests that had their prefill behind them when the
    step began.
    """
    if len({id_ in decoding_before for id_ in output.num_scheduled_tokens}) > 1:
        raise InvariantError("purity", f"prefill beside decode: {output.num_scheduled_tokens}")


def fingerprint(output: SchedulerOutput) -> dict[str, object]:
    """All that a ``SchedulerOutput`` tells the workers, as comparable values, order included."""
    cached = output.scheduled_cached_reqs
    return {
        "tokens": list(output.num_scheduled_tokens.items()),
        "new": [
            (r.req_id, r.block_ids, r.num_computed_tokens, r.prefill_token_ids)
            for r in output.scheduled_new_reqs
        ],
        "cached": (cached.req_ids, cached.num_computed_tokens, cached.num_output_tokens),
        "resumed": cached.resumed_req_ids,
        "blocks": cached.new_block_ids,
        "resent": cached.all_token_ids,
        "drafts": output.scheduled_spec_decode_tokens,
        "preempted": output.preempted_req_ids,
        "finished": output.finished_req_ids,
    }


def identity(ours: SchedulerOutput, upstream: SchedulerOutput) -> None:
    """Two schedulers made the same step: same requests, tokens, blocks and victims, same order."""
    same_parts(fingerprint(ours), fingerprint(upstream))


def same_parts(ours: Mapping[str, object], upstream: Mapping[str, object]) -> None:
    """``identity`` for two fingerprints."""
    for part, mine in ours.items():
        if mine != upstream[part]:
            raise InvariantError("identity", f"{part}: {mine} against {upstream[part]}")


def bounded_overtaking(admitted: Sequence[Request], aging_tokens_per_s: float) -> None:
    """Aging bounds the wait: who goes first although it came later is shorter, by enough.

    ``admitted``: requests in the order of their first admission. A request of s' tokens may pass
    one of s tokens only if it arrived at most ``(s - s') / aging`` seconds after it.
    """
    for place, request in enumerate(admitted):
        for earlier in admitted[:place]:
            lead_s = earlier.arrival_time - request.arrival_time
            shorter_tokens = request.num_prompt_tokens - earlier.num_prompt_tokens
            if lead_s > 0 and lead_s * aging_tokens_per_s > shorter_tokens + 1e-6:
                raise InvariantError(
                    "bounded wait", f"request {earlier.request_id} passed {request.request_id}"
                )


class ServiceGap(Observer):
    """Law "service gap", the theorem of the Virtual Token Counter (Sheng et al., OSDI'24).

    Over any time in which two clients both have requests waiting, their weighted service differs
    by at most ``bound_tokens``: ``2 * max(w_in * longest prompt, w_out * tokens in a batch)``, see
    ``lab3.policy.fairness.service_gap_bound``. A prompt counts as served when it is admitted the
    first time, an output token when it is sent. ``largest_tokens`` is the widest gap seen.
    """

    def __init__(
        self,
        client_of: Callable[[str], str],
        input_weight: float,
        output_weight: float,
        bound_tokens: float,
    ) -> None:
        """``client_of``: the client of a request id."""
        self._client_of = client_of
        self._weights = input_weight, output_weight
        self.bound_tokens = bound_tokens
        self.largest_tokens = 0.0
        self._served: Counter[str] = Counter()
        self._admitted: set[str] = set()
        # For each two clients the difference of their service, lowest and highest since both wait.
        self._gaps: dict[tuple[str, str], tuple[float, float]] = {}

    def after_schedule(self, driver: Driver, step: Step) -> None:
        for new in step.output.scheduled_new_reqs:
            # A request that was preempted before its first token is new a second time.
            if new.req_id not in self._admitted:
                self._admitted.add(new.req_id)
                self._served[self._client_of(new.req_id)] += self._weights[0] * new.prompt_len

    def after_update(self, driver: Driver, step: Step) -> None:
        for id_, tokens in step.tokens.items():
            self._served[self._client_of(id_)] += self._weights[1] * len(tokens)
        waiting = sorted({self._client_of(r.request_id) for r in driver.scheduler.waiting})
        before, self._gaps = self._gaps, {}
        for pair in itertools.combinations(waiting, 2):
            gap = self._served[pair[0]] - self._served[pair[1]]
            low, high = before.get(pair, (gap, gap))
            low, high = self._gaps[pair] = min(low, gap), max(high, gap)
            self.largest_tokens = max(self.largest_tokens, high - low)
            if high - low > self.bound_tokens:
                raise InvariantError(
                    "service gap",
                    f"{' and '.join(pair)} drifted {high - low:.0f} apart, "
                    f"bound {self.bound_tokens:.0f}",
                )


@dataclass(slots=True)
class _Row:
    """A request as the model runner knows it; ``computed`` is the next position to compute."""

    num_prompt_tokens: int
    num_tokens: int
    computed: int
    block_ids: list[int]


@dataclass
class Runner:
    """A model runner's books: rows, positions, block tables.

    Law "positions": each request's tokens are computed one after the other, none twice and none
    left out, after a preemption again from where the scheduler says. Law "blocks": a step writes
    no block of another request. Law "rows": the runner is told of every request's start, of
    every finish, and gets the tokens again of one that was not in the batch before.
    """

    block_size: int
    runner_v2: bool = False
    rows: dict[str, _Row] = field(default_factory=dict)
    last_batch: Collection[str] = ()

    def execute(self, output: SchedulerOutput, sampled: Mapping[str, list[int]]) -> None:
        """Check one batch and book it; ``sampled`` holds the tokens it yields by request."""
        self.begin(output)
        self.compute(output, sampled)

    def begin(self, output: SchedulerOutput) -> None:
        """First half of ``execute``: who ended, who started, who goes on and where."""
        for id_ in output.finished_req_ids:
            self.rows.pop(id_, None)
        for data in output.scheduled_new_reqs:
            self._start(data)
        self._continue(output)

    def compute(self, output: SchedulerOutput, sampled: Mapping[str, list[int]]) -> None:
        """Second half of ``execute``: positions computed, blocks written, tokens sampled."""
        writers: dict[int, str] = {}
        for id_, num_new in output.num_scheduled_tokens.items():
            num_drafts = len(output.scheduled_spec_decode_tokens.get(id_, ()))
            self._write(id_, num_new, num_drafts, writers)
            row, num_sampled = self.rows[id_], len(sampled[id_])
            row.num_tokens += num_sampled
            if num_drafts:
                row.computed -= num_drafts + 1 - num_sampled
        self.last_batch = set(output.num_scheduled_tokens)

    def _start(self, data: NewRequestData) -> None:
        if data.req_id in self.rows and not self.runner_v2:
            raise InvariantError("rows", f"request {data.req_id} started twice")
        num_tokens = len(data.prefill_token_ids or data.prompt_token_ids)
        self.rows[data.req_id] = _Row(
            data.prompt_len, num_tokens, data.num_computed_tokens, list(data.block_ids[0])
        )

    def _continue(self, output: SchedulerOutput) -> None:
        cached = output.scheduled_cached_reqs
        for index, id_ in enumerate(cached.req_ids):
            if (row := self.rows.get(id_)) is None:
                raise InvariantError("rows", f"request {id_} was never started")
            blocks, computed = cached.new_block_ids[index], cached.num_computed_tokens[index]
            if id_ in cached.resumed_req_ids:
                row.block_ids = list(blocks[0])
                row.computed = computed
                row.num_tokens = row.num_prompt_tokens + cached.num_output_tokens[index]
            else:
                row.block_ids.extend(blocks[0] if blocks else ())
            # With drafts in flight the scheduler still counts those that will be rejected.
            if not row.computed <= computed <= row.computed + output.num_spec_tokens_to_schedule:
                raise InvariantError(
                    "positions",
                    f"request {id_} is at {row.computed}, the scheduler says {computed}",
                )
            resent = id_ in cached.all_token_ids
            if not (self.runner_v2 or resent or id_ in self.last_batch):
                raise InvariantError("rows", f"request {id_} comes back without its tokens")

    def _write(self, id_: str, num_new: int, num_drafts: int, writers: dict[int, str]) -> None:
        row = self.rows[id_]
        start, end = row.computed, row.computed + num_new
        if end - num_drafts > row.num_tokens:
            raise InvariantError(
                "positions", f"request {id_} computes {end} of {row.num_tokens} tokens"
            )
        if end > len(row.block_ids) * self.block_size:
            raise InvariantError("blocks", f"request {id_} has no block for position {end - 1}")
        for block in row.block_ids[start // self.block_size : -(-end // self.block_size)]:
            if writers.setdefault(block, id_) != id_:
                raise InvariantError("blocks", f"{writers[block]} and {id_} both write {block}")
        row.computed = end


class Invariants(Observer):
    """Checks every law of this module at every step of a ``Driver``.

    ``pure`` adds strategy A's purity. ``kv_every``: check KV conservation every so many steps
    only, since it looks at every block held. ``finish()`` checks that a drained scheduler left
    nothing behind.
    """

    def __init__(self, *, pure: bool = False, kv_every: int = 1) -> None:
        self.pure = pure
        self.kv_every = kv_every
        self.runner: Runner | None = None
        self._decoding: set[str] = set()

    def before_schedule(self, driver: Driver) -> None:
        if self.pure:
            self._decoding = {
                r.request_id for r in driver.scheduler.running if not r.is_prefill_chunk
            }

    def after_schedule(self, driver: Driver, step: Step) -> None:
        scheduler, output = driver.scheduler, step.output
        token_budget(scheduler, output)
        progress(driver, output)
        if self.pure:
            purity(self._decoding, output)
        self._check_state(driver)

    def after_execute(self, driver: Driver, step: Step) -> None:
        if self.runner is None:
            scheduler = driver.scheduler
            self.runner = Runner(scheduler.block_size, scheduler.use_v2_model_runner)
        result = step.result
        self.runner.execute(
            step.output, dict(zip(result.req_ids, result.sampled_token_ids, strict=True))
        )

    def after_update(self, driver: Driver, step: Step) -> None:
        self._check_state(driver)

    def finish(self, driver: Driver) -> None:
        """After ``driver.run()``: all blocks free, no request left, no row left at the runner."""
        scheduler = driver.scheduler
        self._check_state(driver, kv=True)
        pool = scheduler.kv_cache_manager.block_pool
        if pool.get_num_free_blocks() != pool.num_gpu_blocks - 1:
            raise InvariantError("KV conservation", f"blocks lost: {driver.describe()}")
        if scheduler.requests:
            raise InvariantError("requests conserved", f"left over: {list(scheduler.requests)}")
        if self.runner and self.runner.rows:
            raise InvariantError("rows", f"no end was announced of {list(self.runner.rows)}")

    def _check_state(self, driver: Driver, kv: bool = False) -> None:
        scheduler = driver.scheduler
        seats(scheduler)
        requests_conserved(scheduler, driver.unfinished)
        if kv or driver.num_steps % self.kv_every == 0:
            kv_conservation(scheduler)

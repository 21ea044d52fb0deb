"""Each law of ``lab3.invariants`` catches a scheduler that breaks it."""

import pytest
from handout_reference import HandoutPrefillFirst
from vllm.v1.core.sched.scheduler import Scheduler

from lab3 import invariants
from lab3.driver import Driver
from lab3.engine import create_requests, create_scheduler
from lab3.invariants import InvariantError, Invariants
from my_scheduler import PassthroughScheduler, SJFScheduler


class CountsTokensTwice(Scheduler):
    def schedule(self, *args):
        output = super().schedule(*args)
        output.total_num_scheduled_tokens *= 2
        return output


class KeepsBlocksOfFinished(Scheduler):
    def _free_blocks(self, request):
        del self.requests[request.request_id]


class SharesBlocks(Scheduler):
    def schedule(self, *args):
        output = super().schedule(*args)
        owned = self.kv_cache_manager.coordinator.single_type_managers[0].req_to_blocks
        if len(owned) > 1:
            first, second, *_ = owned.values()
            second[0] = first[0]
        return output


class LosesARequest(Scheduler):
    def schedule(self, *args):
        if len(self.waiting) > 2:
            self.waiting.pop_request()
        return super().schedule(*args)


class QueuesARunningRequest(Scheduler):
    def schedule(self, *args):
        output = super().schedule(*args)
        self.waiting.add_request(self.running[0])
        return output


class LeavesSeatsLow(Scheduler):
    def schedule(self, *args):
        self.max_num_active_reqs = 1
        return super().schedule(*args)


class NeverAdmits(PassthroughScheduler):
    def schedule(self, *args):
        with self.no_admission():
            return super().schedule(*args)


class SkipsAPosition(Scheduler):
    def _update_after_schedule(self, output):
        super()._update_after_schedule(output)
        for id_ in output.num_scheduled_tokens:
            self.requests[id_].num_computed_tokens += self.requests[id_].is_prefill_chunk


class SchedulesTwiceAStep(Scheduler):
    """The first output's finished ids are gone: no step tells the runner about them."""

    def schedule(self, *args):
        output = super().schedule(*args)
        return output if output.total_num_scheduled_tokens else super().schedule(*args)


class ForgetsToResend(PassthroughScheduler):
    """Leaves a request out of a step and claims afterwards that it was in."""

    def schedule(self, *args):
        if self.current_step % 4 == 2:
            self.skip_this_step(self.running[:1])
        output = super().schedule(*args)
        self.prev_step_scheduled_req_ids.update(r.request_id for r in self.running)
        return output


class StartsTwice(Scheduler):
    def _make_cached_request_data(self, running, resumed, *args):
        data = super()._make_cached_request_data(running, resumed, *args)
        data.req_ids[:] = [f"{id_}x" for id_ in data.req_ids]
        return data


def drain(driver, checks):
    driver.run()
    checks.finish(driver)


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (CountsTokensTwice, "token budget: .* add up to 40"),
        (KeepsBlocksOfFinished, "KV conservation: finished request 0 holds blocks"),
        (SharesBlocks, "KV conservation: 2 blocks held, 3 not free"),
        (LosesARequest, "requests conserved: lost or left over: {'0'}"),
        (QueuesARunningRequest, "requests conserved: a request is in two places"),
        (LeavesSeatsLow, "seats: limit left at 1, not 2"),
        (HandoutPrefillFirst, "seats: 4 running, 2 seats"),
        (NeverAdmits, "progress: a step without tokens, but 0 running, 4 waiting"),
        (SkipsAPosition, "positions: request 0 is at 40, the scheduler says 41"),
        (SchedulesTwiceAStep, "rows: no end was announced of"),
        (ForgetsToResend, "rows: request 0 comes back without its tokens"),
        (StartsTwice, "rows: request 0x was never started"),
    ],
)
def test_law_catches(cls, message):
    driver = Driver(
        create_scheduler(cls, max_num_seqs=2, max_num_batched_tokens=40),
        observers=[checks := Invariants()],
    )
    prompts = [50, 50, 50, 50] if cls is SkipsAPosition else [32, 8, 32, 8]
    driver.add(*create_requests(4, prompt_tokens=prompts, output_tokens=[4, 30, 4, 4]))

    with pytest.raises(InvariantError, match=message):
        drain(driver, checks)


def test_purity_catches_vllms_mixed_steps():
    driver = Driver(create_scheduler(), observers=[Invariants(pure=True)])
    driver.add(*create_requests(1))
    driver.step()
    driver.add(*create_requests(1, first_id=1))
    with pytest.raises(InvariantError, match="purity: prefill beside decode"):
        driver.step()


def outputs_of(cls, **settings):
    driver = Driver(create_scheduler(cls, max_num_seqs=1, settings=settings))
    driver.add(*create_requests(3, prompt_tokens=[30, 20, 10], output_tokens=2))
    return [step.output for step in driver.steps()]


def test_identity_tells_orders_apart():
    for ours, upstream in zip(outputs_of(PassthroughScheduler), outputs_of(None), strict=True):
        invariants.identity(ours, upstream)
    with pytest.raises(InvariantError, match="identity: tokens"):
        invariants.identity(outputs_of(SJFScheduler)[0], outputs_of(None)[0])


def test_bounded_overtaking_allows_what_aging_allows():
    """A prompt 20 tokens shorter may pass at 10 tokens/s if it came at most 2 s later."""
    long_, short, late = create_requests(3, prompt_tokens=[30, 10, 10], arrival_s=[0.0, 2.0, 2.1])
    invariants.bounded_overtaking([short, long_, late], aging_tokens_per_s=10)
    with pytest.raises(InvariantError, match="bounded wait: request 2 passed 0"):
        invariants.bounded_overtaking([short, late, long_], aging_tokens_per_s=10)

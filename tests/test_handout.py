"""What the hand-out's own code does on vLLM 0.32, fault by fault, and that ours does not.

Each test runs one workload on the hand-out's class (an expected failure) and on ours.
"""

import pytest
from handout_reference import (
    HandoutPrefillFirst,
    HandoutSJF,
    PrintedPrefillFirst,
    PrintedSJF,
)
from vllm.v1.core.sched.interface import PauseState

from lab3.driver import Driver, Stalled
from lab3.engine import create_requests, create_scheduler
from lab3.invariants import InvariantError, Invariants
from my_scheduler import SJFScheduler, StepExclusivePrefillFirstScheduler


def make_driver(cls, *, pure=False, check=False, **knobs):
    observers = [Invariants(pure=pure)] if check or pure else []
    return Driver(create_scheduler(cls, **knobs), observers=observers)


@pytest.mark.parametrize(
    ("printed", "ours"),
    [(PrintedPrefillFirst, StepExclusivePrefillFirstScheduler), (PrintedSJF, SJFScheduler)],
)
def test_printed_signature_dies_at_the_first_step(printed, ours):
    """EngineCore passes ``throttle_prefills`` by position."""
    handout, fixed = make_driver(printed), make_driver(ours, check=True)
    for driver in (handout, fixed):
        driver.add(*create_requests(3))

    with pytest.raises(TypeError, match="positional argument"):
        handout.step()

    fixed.run()
    assert all(len(tokens) == 16 for tokens in fixed.tokens.values())


def fill_pool(driver):
    """Four decodes that hold nearly all blocks, then a prompt that does not fit beside them."""
    driver.add(*create_requests(4, prompt_tokens=70, output_tokens=40))
    driver.step()
    driver.add(*create_requests(1, prompt_tokens=96, output_tokens=4, first_id=4))


def test_full_kv_pool_stops_the_handout_for_ever():
    """Nobody decodes while a prompt waits, so no block ever comes free for that prompt."""
    pool = {"num_blocks": 24, "max_num_seqs": 8}
    handout = make_driver(HandoutPrefillFirst, **pool)
    fixed = make_driver(StepExclusivePrefillFirstScheduler, pure=True, **pool)
    for driver in (handout, fixed):
        fill_pool(driver)

    with pytest.raises(Stalled, match=r"head of the queue: request 4 \(WAITING\), 96 tokens"):
        handout.run()
    assert not handout.finished

    fixed.run()
    assert len(fixed.finished) == 5


def test_hidden_requests_overrun_the_seats():
    """vLLM counts seats in ``running``, which is empty while the hand-out admits."""
    handout = make_driver(HandoutPrefillFirst, max_num_seqs=4)
    fixed = make_driver(StepExclusivePrefillFirstScheduler, pure=True, max_num_seqs=4)
    for driver in (handout, fixed):
        driver.add(*create_requests(4))
        driver.step()
        driver.add(*create_requests(4, first_id=4))

    handout.step()
    assert len(handout.scheduler.running) == 8
    with pytest.raises(AssertionError):
        handout.step()

    fixed.run()
    assert len(fixed.finished) == 8


def test_prompt_above_the_budget_makes_mixed_steps():
    """The last chunks come when the queue is empty, in a step that decodes as well."""
    budget = {"max_num_batched_tokens": 64, "max_num_seqs": 8}
    handout = make_driver(HandoutPrefillFirst, pure=True, **budget)
    fixed = make_driver(StepExclusivePrefillFirstScheduler, pure=True, **budget)
    for driver in (handout, fixed):
        driver.add(*create_requests(3, prompt_tokens=[20, 20, 200]))

    with pytest.raises(InvariantError, match="purity"):
        handout.run()

    fixed.run()
    assert len(fixed.finished) == 3


def first_token_step(driver, request_id, num_steps):
    """Step number of a request's first token while a new prompt arrives in every step."""
    for step in range(num_steps):
        driver.add(*create_requests(1, prompt_tokens=10, output_tokens=1, first_id=1000 + step))
        driver.step()
        if driver.tokens[request_id]:
            return step
    return None


def test_later_chunks_starve_while_prompts_arrive():
    """A half-prefilled prompt sits in ``running`` and is hidden with the decodes."""
    budget = {"max_num_batched_tokens": 64, "max_num_seqs": 64}
    handout = make_driver(HandoutPrefillFirst, **budget)
    fixed = make_driver(StepExclusivePrefillFirstScheduler, pure=True, **budget)
    for driver in (handout, fixed):
        driver.add(*create_requests(1, prompt_tokens=200, output_tokens=2))

    assert first_token_step(handout, "0", 60) is None
    # 200 tokens in chunks of 64: the fourth step of the request is its last chunk.
    assert first_token_step(fixed, "0", 60) == 3


def test_paused_new_never_drains():
    """PAUSED_NEW freezes the queue, so it never gets empty and the decodes stay hidden."""
    handout = make_driver(HandoutPrefillFirst, max_num_seqs=8)
    fixed = make_driver(StepExclusivePrefillFirstScheduler, pure=True, max_num_seqs=8)
    for driver in (handout, fixed):
        driver.add(*create_requests(3))
        driver.step()
        driver.add(*create_requests(3, first_id=3))
        driver.pause(PauseState.PAUSED_NEW)

    with pytest.raises(Stalled, match="3 running"):
        handout.run()

    fixed.run()
    assert set(fixed.finished) == {"0", "1", "2"}
    fixed.pause(PauseState.UNPAUSED)
    fixed.run()
    assert len(fixed.finished) == 6


def test_sorting_the_queue_needs_a_deque():
    """Under ``--scheduling-policy priority`` the queue is a heap without ``clear``."""
    handout = make_driver(HandoutSJF, policy="priority")
    fixed = make_driver(SJFScheduler, check=True, policy="priority", max_num_seqs=1)
    for driver in (handout, fixed):
        driver.add(*create_requests(3, prompt_tokens=[30, 20, 10], priority=[0, 1, 1]))

    with pytest.raises(AttributeError, match="clear"):
        handout.step()

    order = [id_ for step in fixed.steps() for id_ in step.finished_ids]
    assert order == ["0", "2", "1"]


def test_sorted_queue_sends_preempted_requests_to_the_back():
    """A preempted request has a stream that stands still; a new short prompt must not pass it."""
    victim_runs = {}
    for cls in (HandoutSJF, SJFScheduler):
        driver = make_driver(cls, num_blocks=17, max_num_seqs=3)
        driver.add(*create_requests(3, prompt_tokens=64, output_tokens=40))
        driver.step()
        while not driver.scheduler.waiting:
            driver.step()
        (victim,) = driver.scheduler.waiting
        (short,) = create_requests(1, prompt_tokens=8, first_id=9)
        driver.add(short)
        while short not in driver.scheduler.running:
            driver.step()
        victim_runs[cls] = victim in driver.scheduler.running

    assert victim_runs == {HandoutSJF: False, SJFScheduler: True}

"""DLA's victims against the published selector, ``vllm-hust-dla`` 0.1.0, on random states.

Both evict the running request with the most predicted output to come. They differ in four
places, all on purpose; ``reasons`` names them, and whatever differs for no reason fails a test:

========  ===================================  ===========================================
          published                            here
========  ===================================  ===========================================
tie       evicts the earliest arrival          evicts the latest, as vLLM does
outlived  a prediction that was outlived       is void: the request counts with what is
          leaves 0: never evicted while        left of its ``max_tokens``
          another has a token to come
reading   ``int(value)``: -5, 0, True leave    values below 1, booleans and text say
          0, 2**63 leaves 2**63, text raises   nothing; more than ``max_tokens`` is cut
asking    may evict the very request that      evicts another while there is one that has
          asks for the block                   no tokens in this step yet
========  ===================================  ===========================================
"""

import random
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
from vllm.v1.core.sched.request_queue import SchedulingPolicy
from vllm.v1.request import RequestStatus

from lab3.engine import create_requests, create_scheduler
from lab3.policy.prediction import parse_prediction
from my_scheduler import DLAScheduler

selector = pytest.importorskip("dla.selector", reason="pip install vllm-hust-dla==0.1.0")
published = selector.DlaVictimSelector()

NUM_STATES = 1500


@dataclass(frozen=True)
class State:
    """A running request with the attributes that the published selector reads."""

    request_id: str
    predicted_length: Any
    num_output_tokens: int
    max_tokens: int
    arrival_time: float
    priority: int
    prefilling: bool


def random_states(rng: random.Random, plain: bool = False, predicted: bool = True) -> list[State]:
    """Running requests in the order of arrival. ``plain``: nothing that the two differ about."""
    predictions = [None, 10, 40, 80, 160] * 4 + ([] if plain else [0, -5, True, 2**63, 5000])
    states: list[State] = []
    while len(states) < rng.randint(2, 10):
        max_tokens = rng.choice([200, 300, 400])
        state = State(
            request_id=str(len(states)),
            predicted_length=rng.choice(predictions) if predicted else None,
            num_output_tokens=rng.randint(1, 9) if plain else rng.choice([1, 10, 60]),
            max_tokens=max_tokens,
            arrival_time=float(len(states)),
            priority=rng.randint(0, 2),
            prefilling=not plain and rng.random() < 0.2,
        )
        if not plain or left(state) not in map(left, states):
            states.append(state)
    return states


def left(state: State) -> int:
    return selector._predicted_remaining(state)


class Ours:
    """The real scheduler, put into a state in which no block is to be had."""

    def __init__(self, policy: str = "fcfs") -> None:
        self.scheduler: DLAScheduler = create_scheduler(
            DLAScheduler, num_blocks=64, max_num_seqs=16, policy=policy
        )
        self.scheduler.blocks_may_run_out = lambda: True
        self.scheduler._allocate = lambda *args, **kwargs: None
        self.evicted: list[str] = []
        preempt = self.scheduler._preempt_request

        def recording_preempt(request, *args, **kwargs):
            self.evicted.append(request.request_id)
            preempt(request, *args, **kwargs)

        self.scheduler._preempt_request = recording_preempt

    def evictions(self, states: list[State]) -> list[str]:
        """Who goes in one step, in this order; at last the request that asked for the block."""
        requests = create_requests(
            len(states),
            prompt_tokens=16,
            output_tokens=[s.max_tokens for s in states],
            arrival_s=[s.arrival_time for s in states],
            priority=[s.priority for s in states],
            extra_args=[{"predicted_length": s.predicted_length} for s in states],
        )
        scheduler = self.scheduler
        for request, state in zip(requests, states, strict=True):
            scheduler.add_request(request)
            scheduler.waiting.remove_request(request)
            request.status = RequestStatus.RUNNING
            request.append_output_token_ids([7] * state.num_output_tokens)
            request.is_prefill_chunk = state.prefilling
            request.num_computed_tokens = 8 if state.prefilling else request.num_tokens - 1
            scheduler.running.append(request)
        self.evicted.clear()
        scheduler.schedule()
        scheduler.finish_requests(None, RequestStatus.FINISHED_ABORTED)
        return self.evicted.copy()


def published_evictions(states: list[State], policy: SchedulingPolicy) -> list[str]:
    running, order = list(states), []
    while running:
        victim = published.pick_victim(running, policy)
        running.remove(victim)
        order.append(victim.request_id)
    return order


def reasons(states: list[State], ours: str, theirs: str, asking: str) -> set[str]:
    """Why the first victims may differ, see the module's table; empty if there is no reason."""
    victims = [state for state in states if state.request_id in (ours, theirs)]
    found = set()
    if left(victims[0]) == left(victims[1]):
        found.add("tie")
    if theirs == asking:
        found.add("asking")
    read = {s.request_id: parse_prediction(s.predicted_length, s.max_tokens) for s in states}
    for state in victims:
        predicted = read[state.request_id]
        if predicted != state.predicted_length:
            found.add("reading")
        elif predicted is not None and state.num_output_tokens >= predicted:
            found.add("outlived")
    if not any(read.values()):
        found.add("reading")
    return found


def test_without_the_four_differences_every_victim_is_the_published_one():
    rng, ours = random.Random(1), Ours()
    for _ in range(NUM_STATES):
        states = random_states(rng, plain=True)
        if all(state.predicted_length is None for state in states):
            continue
        assert ours.evictions(states) == published_evictions(states, SchedulingPolicy.FCFS)


def test_every_difference_has_one_of_the_four_reasons_and_all_four_occur():
    rng, ours, seen, num_different = random.Random(2), Ours(), Counter(), 0
    for _ in range(NUM_STATES):
        states = random_states(rng)
        mine = ours.evictions(states)
        theirs = published_evictions(states, SchedulingPolicy.FCFS)
        if mine[0] == theirs[0]:
            continue
        num_different += 1
        why = reasons(states, mine[0], theirs[0], asking=mine[-1])
        assert why, f"{states}: evicts {mine[0]}, published {theirs[0]}"
        if len(why) == 1:
            seen.update(why)
    # Each reason explains some state all by itself.
    assert set(seen) == {"tie", "outlived", "reading", "asking"}
    assert 0 < num_different < NUM_STATES


def test_ties_evict_the_latest_arrival_where_the_published_selector_evicts_the_earliest():
    states = [State(str(i), 50, 10, 200, float(i), 0, prefilling=False) for i in range(4)]
    assert Ours().evictions(states) == ["3", "2", "1", "0"]
    assert published_evictions(states, SchedulingPolicy.FCFS) == ["0", "1", "2", "3"]


def test_who_outlived_its_prediction_is_not_immune():
    low = State("low", 5, 60, 400, 0.0, 0, prefilling=False)
    honest = [State(str(i), 100 + i, 60, 400, 1.0 + i, 0, prefilling=False) for i in range(3)]
    states = [low, *honest]
    # create_requests numbers requests by place, so "low" is request 0.
    assert Ours().evictions(states)[0] == "0"
    assert published_evictions(states, SchedulingPolicy.FCFS)[-1] == "low"


def test_text_that_makes_the_published_selector_raise_is_no_prediction_here():
    states = [State(str(i), value, 1, 200, float(i), 0, False) for i, value in enumerate(("x", 50))]
    with pytest.raises(ValueError, match="invalid literal"):
        published_evictions(states, SchedulingPolicy.FCFS)
    assert Ours().evictions(states) == ["0", "1"]


def test_without_any_prediction_both_leave_the_choice_to_vllm():
    rng, ours = random.Random(3), Ours()
    for _ in range(NUM_STATES // 5):
        states = random_states(rng, predicted=False)
        latest_first = [state.request_id for state in reversed(states)]
        assert ours.evictions(states) == latest_first
        assert published_evictions(states, SchedulingPolicy.FCFS) == latest_first


def test_under_the_priority_policy_both_leave_the_choice_to_vllm():
    rng, ours = random.Random(4), Ours("priority")
    for _ in range(NUM_STATES // 5):
        states = random_states(rng)
        theirs = published_evictions(states, SchedulingPolicy.PRIORITY)
        # vLLM stops when the request that asked for the block, the first one, has gone itself.
        assert ours.evictions(states) == theirs[: theirs.index("0") + 1]

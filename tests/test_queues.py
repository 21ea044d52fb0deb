"""The two waiting queues, alone: order, places, removal, and against a plain list."""

import random
import weakref
from collections.abc import Sequence

import pytest
from vllm.v1.request import Request, RequestStatus

from lab3.engine import create_requests
from lab3.policy.fairness import VirtualTokens
from lab3.queues import FairQueue, KeyedQueue


def _ids(queue) -> list[str]:
    return [request.request_id for request in queue]


def _drain(queue) -> list[str]:
    return [queue.pop_request().request_id for _ in range(len(queue))]


def _by_prompt(by_priority: bool = False) -> KeyedQueue:
    return KeyedQueue(lambda r: (r.num_prompt_tokens, r.arrival_time), by_priority)


def _fair(by_priority: bool = False) -> tuple[FairQueue, VirtualTokens]:
    tokens = VirtualTokens(input_weight=1.0, output_weight=2.0)
    return FairQueue(lambda r: r.sampling_params.extra_args["client"], tokens, by_priority), tokens


def _of(clients: Sequence[str], **knobs) -> list[Request]:
    """One request for each letter (or word), which is its client."""
    extra_args = [{"client": client} for client in clients]
    return create_requests(len(clients), extra_args=extra_args, **knobs)


def _preempted(request: Request) -> Request:
    request.status = RequestStatus.PREEMPTED
    return request


@pytest.fixture(params=["keyed", "fair"])
def queue(request):
    return _by_prompt() if request.param == "keyed" else _fair()[0]


def test_smallest_key_first_and_equals_by_arrival():
    queue = _by_prompt()
    for request in create_requests(4, prompt_tokens=[30, 10, 20, 10], arrival_s=[0, 5, 0, 1]):
        queue.add_request(request)
    assert _ids(queue) == ["3", "1", "2", "0"] == _drain(queue)


def test_priority_comes_before_the_key():
    queue = _by_prompt(by_priority=True)
    for request in create_requests(3, prompt_tokens=[30, 10, 20], priority=[0, 1, 0]):
        queue.add_request(request)
    assert _drain(queue) == ["2", "0", "1"]


def test_preempted_requests_go_first_the_last_preempted_before_the_others(queue):
    fresh, first, second = _of("aab", prompt_tokens=[1, 500, 900])
    queue.add_request(fresh)
    queue.prepend_request(_preempted(first))
    queue.prepend_request(_preempted(second))
    assert _ids(queue) == ["2", "1", "0"] == _drain(queue)


def test_skipped_requests_get_their_place_back(queue):
    for request in _of("abac", prompt_tokens=[40, 20, 10, 30]):
        queue.add_request(request)
    before = _ids(queue)
    # As vLLM does: popped one by one, collected at the left, put back in one call.
    skipped = [queue.pop_request() for _ in range(3)][::-1]
    queue.prepend_requests(skipped)
    assert _ids(queue) == before


def test_removal_from_the_middle_and_by_the_way(queue):
    requests = _of("abca", prompt_tokens=[40, 20, 10, 30])
    for request in requests:
        queue.add_request(request)
    queue.remove_request(requests[1])
    with pytest.raises(KeyError):
        queue.remove_request(requests[1])
    queue.remove_requests([requests[1], requests[3]])
    assert requests[0] in queue
    assert requests[1] not in queue
    assert len(queue) == 2
    assert sorted(_drain(queue)) == ["0", "2"]


def test_a_removed_request_may_come_back(queue):
    (request, other) = _of("ab", prompt_tokens=[10, 20])
    queue.add_request(request)
    queue.add_request(other)
    queue.remove_request(request)
    queue.add_request(request)
    assert sorted(_drain(queue)) == ["0", "1"]
    assert not queue


def test_an_empty_queue_says_so(queue):
    assert not queue
    assert len(queue) == 0
    assert _ids(queue) == []
    for take in (queue.peek_request, queue.pop_request):
        with pytest.raises(IndexError):
            take()


def test_a_request_is_removed_whatever_its_status_is_by_then(queue):
    """vLLM sets the final status of a preempted request before it takes it out of the queue."""
    (request,) = _of("a")
    queue.prepend_request(_preempted(request))
    request.status = RequestStatus.FINISHED_STOPPED
    queue.remove_requests({request})
    assert not queue


def test_requests_that_left_are_let_go_although_they_never_reached_the_front(queue):
    """Clients give up on long prompts that starve: their tokens must not stay in memory."""
    first, *starving = _of(["first", *map(str, range(2000))], prompt_tokens=[1] + [500] * 2000)
    for request in (first, *starving):
        queue.add_request(request)
    held = [weakref.ref(request) for request in starving]
    for request in starving:
        queue.remove_requests([request])
    del request, starving
    assert sum(reference() is not None for reference in held) < 100
    assert queue.pop_request() is first


@pytest.mark.parametrize("seed", range(20))
def test_keyed_queue_against_a_sorted_list(seed):
    rng, queue, model = random.Random(seed), _by_prompt(), []
    requests = create_requests(
        300, prompt_tokens=[rng.randint(1, 9) for _ in range(300)], arrival_s=0.0
    )
    for number, request in enumerate(requests):
        queue.add_request(request)
        model.append((request.num_prompt_tokens, number, request))
        if rng.random() < 0.4:
            model.sort()
            assert queue.peek_request() is queue.pop_request() is model.pop(0)[2]
        if model and rng.random() < 0.3:
            queue.remove_request(model.pop(rng.randrange(len(model)))[2])
        assert len(queue) == len(model)
    assert _drain(queue) == [request.request_id for *_, request in sorted(model)]


def test_clients_take_turns_by_what_they_consumed():
    queue, _ = _fair()
    for request in _of("aaaabb", prompt_tokens=100):
        queue.add_request(request)
    # Client b came while a had nothing charged: level with it, and later in time.
    assert _drain(queue) == ["0", "4", "1", "5", "2", "3"]


def test_a_long_prompt_costs_its_client_several_turns():
    queue, _ = _fair()
    for request in _of("abbbb", prompt_tokens=[300, 100, 100, 100, 100]):
        queue.add_request(request)
    assert _drain(queue) == ["0", "1", "2", "3", "4"]
    for request in _of("aabbb", prompt_tokens=[300, 300, 100, 100, 100]):
        queue.add_request(request)
    order = _drain(queue)
    assert order.index("1") > order.index("4")


def test_output_tokens_move_a_client_that_waits():
    queue, tokens = _fair()
    for request in _of("ab", prompt_tokens=10):
        queue.add_request(request)
    tokens.charge("a", output_tokens=50)
    assert _ids(queue) == ["1", "0"] == _drain(queue)


def test_an_idle_client_comes_back_level_with_whoever_is_next():
    queue, tokens = _fair()
    for request in _of("aaa", prompt_tokens=100):
        queue.add_request(request)
    queue.pop_request()
    queue.pop_request()
    (newcomer,) = _of("z", first_id=9, prompt_tokens=100, arrival_s=99.0)
    queue.add_request(newcomer)
    assert tokens.count("z") == tokens.count("a") == 200


def test_after_an_empty_queue_a_client_comes_back_level_with_whoever_left_last():
    queue, tokens = _fair()
    for request in _of("ab", prompt_tokens=[100, 70]):
        queue.add_request(request)
    _drain(queue)
    (newcomer,) = _of("z", first_id=9)
    queue.add_request(newcomer)
    assert tokens.count("z") == tokens.count("b") == 70


def test_a_newcomer_is_level_with_the_least_served_waiting_client_not_with_a_preempted_one():
    queue, tokens = _fair()
    for request in _of("ab", prompt_tokens=100):
        queue.add_request(request)
    victim = queue.pop_request()
    tokens.charge("a", output_tokens=900)
    queue.prepend_request(_preempted(victim))
    (newcomer,) = _of("z", first_id=9)
    queue.add_request(newcomer)
    assert tokens.count("z") == tokens.count("b") == 0


def test_who_left_last_sets_the_level_also_when_it_is_forgotten():
    """An unnamed request is forgotten at its end; the named clients' debts are not."""
    queue, tokens = _fair()
    tokens.charge("named", output_tokens=5000)
    named, unnamed, newcomer = _of(["named", "unnamed", "new"], prompt_tokens=100)
    for request, client in ((named, "named"), (unnamed, "unnamed")):
        tokens.arrive(client)
        queue.add_request(request)
        queue.pop_request()
    tokens.leave("unnamed", remember=False)
    queue.add_request(newcomer)
    assert tokens.count("new") >= tokens.count("named")


def test_skipping_costs_nothing_and_neither_does_coming_back_after_a_preemption():
    queue, tokens = _fair()
    (request,) = _of("a", prompt_tokens=100)
    queue.add_request(request)
    queue.prepend_requests([queue.pop_request()])
    assert tokens.count("a") == 0
    queue.pop_request()
    assert tokens.count("a") == 100
    queue.prepend_request(_preempted(request))
    queue.pop_request()
    assert tokens.count("a") == 100


def test_priority_comes_before_fairness():
    queue, tokens = _fair(by_priority=True)
    for request in _of("aab", priority=[0, 1, 1], prompt_tokens=50):
        queue.add_request(request)
    tokens.charge("a", output_tokens=500)
    assert _drain(queue) == ["0", "2", "1"]


@pytest.mark.parametrize("by_priority", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_fair_queue_against_a_search_through_all(seed, by_priority):
    """Random arrivals, charges, skips and removals; the head is always the least charged."""
    rng = random.Random(seed)
    queue, tokens = _fair(by_priority)
    waiting: list[Request] = []

    def is_before(request: Request) -> tuple:
        priority = request.priority if by_priority else 0
        client = request.sampling_params.extra_args["client"]
        return priority, tokens.count(client), request.arrival_time

    clients = rng.choices("abcdefgh", k=400)
    priorities = [rng.randint(0, 2) for _ in clients]
    for request in _of("".join(clients), prompt_tokens=rng.choice([3, 50]), priority=priorities):
        queue.add_request(request)
        waiting.append(request)
        tokens.charge(rng.choice("abcdefgh"), output_tokens=rng.randint(0, 20))
        if rng.random() < 0.3:
            skipped = [queue.pop_request() for _ in range(min(len(queue), 3))][::-1]
            queue.prepend_requests(skipped)
        if waiting and rng.random() < 0.2:
            gone = waiting.pop(rng.randrange(len(waiting)))
            queue.remove_requests([gone])
        if waiting and rng.random() < 0.5:
            best = min(map(is_before, waiting))
            head = queue.peek_request()
            assert is_before(head) == best
            assert queue.pop_request() is head
            waiting.remove(head)
        assert len(queue) == len(waiting)
        assert set(queue) == set(waiting)

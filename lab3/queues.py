"""Waiting queues that are not first-come-first-served: by a static key, by fair shares."""

import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count
from typing import Any

from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.request import Request, RequestStatus

from lab3.policy.fairness import VirtualTokens


def _let_go(heap: list[tuple[tuple, Any]], rank: Mapping[Any, tuple]) -> None:
    """Rebuild ``heap`` when most of its entries are no longer the ones that ``rank`` holds.

    Entries are else dropped when they surface, and what was aborted may never do so.
    """
    if len(heap) > 2 * len(rank) + 64:
        heap[:] = [(place, item) for item, place in rank.items()]
        heapq.heapify(heap)


class KeyedQueue(RequestQueue):
    """Serves the request with the smallest ``key(request)`` first, in O(log n) a request.

    ``key`` is read once, when the request enters, so it must not change while the request waits
    (linear aging does fit: see ``lab3.policy.ordering.aged_size``). Preempted requests go before
    all others, the last preempted first, as vLLM's own queue has it. With ``by_priority`` (vLLM's
    ``--scheduling-policy priority``) the request's priority comes before all of this.
    """

    def __init__(self, key: Callable[[Request], tuple], by_priority: bool = False) -> None:
        self._key = key
        self._by_priority = by_priority
        self._heap: list[tuple[tuple, Request]] = []
        self._rank: dict[Request, tuple] = {}
        self._ticket = count()

    def add_request(self, request: Request) -> None:
        rank = self._ranked(request)
        self._rank[request] = rank
        heapq.heappush(self._heap, (rank, request))

    def prepend_request(self, request: Request) -> None:
        self.add_request(request)

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self.add_request(request)

    def peek_request(self) -> Request:
        """Raises IndexError when the queue is empty."""
        self._drop_removed()
        return self._heap[0][1]

    def pop_request(self) -> Request:
        """Raises IndexError when the queue is empty."""
        self._drop_removed()
        request = heapq.heappop(self._heap)[1]
        del self._rank[request]
        return request

    def remove_request(self, request: Request) -> None:
        """Raises KeyError when the request does not wait here."""
        del self._rank[request]
        _let_go(self._heap, self._rank)

    def remove_requests(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self._rank.pop(request, None)
        _let_go(self._heap, self._rank)

    def __contains__(self, request: Request) -> bool:
        return request in self._rank

    def __bool__(self) -> bool:
        return bool(self._rank)

    def __len__(self) -> int:
        return len(self._rank)

    def __iter__(self) -> Iterator[Request]:
        return iter(sorted(self._rank, key=self._rank.__getitem__))

    def _ranked(self, request: Request) -> tuple:
        priority = request.priority if self._by_priority else 0
        ticket = next(self._ticket)
        if request.status == RequestStatus.PREEMPTED:
            return (priority, 0, -ticket)
        return (priority, 1, *self._key(request), ticket)

    def _drop_removed(self) -> None:
        # A removed request stays in the heap until it surfaces; the ticket tells its old entry
        # from the one it got when it came back.
        while self._heap and self._rank.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)


class FairQueue(RequestQueue):
    """Serves the client that has consumed least, its requests by arrival.

    A client is charged its prompt the moment a request leaves the queue, so that the next one
    goes to whoever is behind then. ``by_priority``: the request's priority comes first and
    clients share fairly within it. Preempted requests go before all others of their priority:
    they were charged already.
    """

    def __init__(
        self,
        client_of: Callable[[Request], str],
        tokens: VirtualTokens,
        by_priority: bool = False,
    ) -> None:
        self._client_of = client_of
        self._tokens = tokens
        self._by_priority = by_priority
        self._preempted = KeyedQueue(lambda request: (), by_priority)
        # One lane for each client (and priority) that has requests waiting.
        self._lanes: dict[tuple[int, str], KeyedQueue] = {}
        self._lane_of: dict[Request, tuple[int, str]] = {}
        # Counts change while a lane waits, so the heap may hold an old rank of it; `_rank` has
        # the one that counts, and it is put right when it surfaces. Ranks that fall are entered
        # anew at once, ranks that grow surface too early: neither is ever overlooked.
        self._heap: list[tuple[tuple, tuple[int, str]]] = []
        self._rank: dict[tuple[int, str], tuple] = {}
        # Who left the queue last, and its count then: it may be forgotten before anybody comes.
        self._last_client, self._last_count = "", 0.0

    def add_request(self, request: Request) -> None:
        client = self._client_of(request)
        if (self._priority(request), client) not in self._lanes:
            self._tokens.lift(client, self._level())
        self._join(request)

    def prepend_request(self, request: Request) -> None:
        self.prepend_requests([request])

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        for request in requests:
            if request.status != RequestStatus.PREEMPTED:
                # It was only skipped in this step: take back what pop_request() charged.
                client = self._client_of(request)
                self._tokens.charge(client, input_tokens=-request.num_prompt_tokens)
            self._join(request)

    def peek_request(self) -> Request:
        """Raises IndexError when the queue is empty."""
        return self._head_queue().peek_request()

    def pop_request(self) -> Request:
        """Raises IndexError when the queue is empty."""
        queue = self._head_queue()
        request = queue.pop_request()
        _, client = lane = self._lane_of.pop(request)
        if queue is not self._preempted:
            self._tokens.charge(client, input_tokens=request.num_prompt_tokens)
            self._last_client, self._last_count = client, self._tokens.count(client)
            if not queue:
                heapq.heappop(self._heap)
                del self._lanes[lane], self._rank[lane]
        return request

    def remove_request(self, request: Request) -> None:
        """Raises KeyError when the request does not wait here."""
        lane = self._lane_of.pop(request)
        if request in self._preempted:
            self._preempted.remove_request(request)
        else:
            self._lanes[lane].remove_request(request)
            if not self._lanes[lane]:
                del self._lanes[lane], self._rank[lane]
                _let_go(self._heap, self._rank)

    def remove_requests(self, requests: Iterable[Request]) -> None:
        for request in requests:
            if request in self._lane_of:
                self.remove_request(request)

    def __contains__(self, request: Request) -> bool:
        return request in self._lane_of

    def __bool__(self) -> bool:
        return bool(self._lane_of)

    def __len__(self) -> int:
        return len(self._lane_of)

    def __iter__(self) -> Iterator[Request]:
        """In the order of service if nobody were charged in between."""
        lanes = sorted(self._lanes, key=self._rank_now)
        waiting = itertools.chain.from_iterable(self._lanes[lane] for lane in lanes)
        # Stable: within a priority the preempted ones first.
        return heapq.merge(self._preempted, waiting, key=self._priority)

    def _join(self, request: Request) -> None:
        lane = self._lane_of[request] = self._priority(request), self._client_of(request)
        if request.status == RequestStatus.PREEMPTED:
            self._preempted.add_request(request)
            return
        if lane not in self._lanes:
            self._lanes[lane] = KeyedQueue(lambda request: (request.arrival_time,))
        self._lanes[lane].add_request(request)
        self._enter(lane)

    def _level(self) -> float:
        """What a client that had nothing waiting starts with: the least count among those that
        wait, or that of the last one that left."""
        if (lane := self._head_lane()) is not None:
            return self._tokens.count(lane[1])
        return max(self._tokens.count(self._last_client), self._last_count)

    def _enter(self, lane: tuple[int, str]) -> None:
        rank = self._rank_now(lane)
        if self._rank.get(lane) != rank:
            self._rank[lane] = rank
            heapq.heappush(self._heap, (rank, lane))

    def _head_queue(self) -> KeyedQueue:
        lane = self._head_lane()
        if self._preempted:
            priority = self._priority(self._preempted.peek_request())
            if lane is None or priority <= lane[0]:
                return self._preempted
        if lane is None:
            raise IndexError("no request waits")
        return self._lanes[lane]

    def _head_lane(self) -> tuple[int, str] | None:
        while self._heap:
            rank, lane = self._heap[0]
            is_newest = self._rank.get(lane) == rank
            if is_newest and rank == self._rank_now(lane):
                return lane
            heapq.heappop(self._heap)
            if is_newest:
                self._enter(lane)
        return None

    def _rank_now(self, lane: tuple[int, str]) -> tuple:
        priority, client = lane
        return priority, self._tokens.count(client), self._lanes[lane].peek_request().arrival_time

    def _priority(self, request: Request) -> int:
        return request.priority if self._by_priority else 0

"""A waiting queue ordered by a static key instead of by arrival."""

import heapq
from collections.abc import Callable, Iterable, Iterator
from itertools import count

from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.request import Request, RequestStatus


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

    def remove_requests(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self._rank.pop(request, None)

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

"""Fair shares by virtual token counters (Sheng et al., OSDI'24)."""

from collections import Counter
from collections.abc import Collection
from typing import Any

# Idle clients are remembered so that a debt survives a pause, but not without limit: names come
# from the network.
MAX_IDLE_CLIENTS = 4096


def client_name(extra_args: Any, request_id: str) -> tuple[str, bool]:
    """The client a request belongs to, and whether the request named one.

    ``extra_args["client"]`` may be text or a number; anything else, and an empty name, is as good
    as none: then the request is a client of its own, which is the lab's "consumed tokens of each
    request". Never raises.
    """
    name = extra_args.get("client") if isinstance(extra_args, dict) else None
    if isinstance(name, str | int | float) and not isinstance(name, bool) and name != "":
        return f"client:{name}", True
    return f"request:{request_id}", False


class VirtualTokens:
    """Counts what each client has consumed, weighted, and who is owed service.

    ``count`` orders the clients: the smallest goes next. It is the weighted service plus the
    lifts, which take from a client that was away the credit it would have gathered by not asking.
    """

    def __init__(self, input_weight: float, output_weight: float) -> None:
        self._input_weight = input_weight
        self._output_weight = output_weight
        self._count: dict[str, float] = {}
        self._lifted: dict[str, float] = {}
        self._live_requests: Counter[str] = Counter()

    @property
    def served_tokens(self) -> dict[str, float]:
        """Weighted service of each client that was ever served and is not forgotten."""
        served = {name: count - self._lifted.get(name, 0) for name, count in self._count.items()}
        return {name: service for name, service in served.items() if service > 0}

    def count(self, client: str) -> float:
        return self._count.get(client, 0.0)

    def arrive(self, client: str) -> None:
        """A request of ``client`` came in."""
        self._live_requests[client] += 1

    def lift(self, client: str, level: float) -> None:
        """``client`` has nothing waiting and comes back: it starts no lower than ``level``."""
        lift = max(level - self.count(client), 0.0)
        self._count[client] = self.count(client) + lift
        self._lifted[client] = self._lifted.get(client, 0.0) + lift

    def charge(self, client: str, input_tokens: int = 0, output_tokens: int = 0) -> None:
        """``client`` was served; negative numbers take a charge back."""
        service = self._input_weight * input_tokens + self._output_weight * output_tokens
        self._count[client] = self._count.get(client, 0.0) + service

    def leave(self, client: str, remember: bool) -> None:
        """A request of ``client`` ended; ``remember``: the client may come back under its name."""
        self._live_requests[client] -= 1
        if self._live_requests[client] <= 0:
            del self._live_requests[client]
            if not remember:
                self._forget(client)
        if len(self._count) - len(self._live_requests) > MAX_IDLE_CLIENTS:
            # Those with the smallest counts lose least: the next lift takes them further.
            idle = [name for name in self._count if name not in self._live_requests]
            for name in sorted(idle, key=self._count.__getitem__)[: len(idle) // 2]:
                self._forget(name)

    def _forget(self, client: str) -> None:
        self._count.pop(client, None)
        self._lifted.pop(client, None)


def jain_index(amounts: Collection[float]) -> float:
    """Jain's fairness index: 1 when all amounts are equal, 1/n when one has everything.

    1 for no amounts or only zeros: nobody is worse off than another.
    """
    total = sum(amounts)
    if total <= 0:
        return 1.0
    return total**2 / (len(amounts) * sum(amount**2 for amount in amounts))


def service_gap_bound(
    input_weight: float, output_weight: float, longest_prompt_tokens: int, batch_tokens: int
) -> float:
    """How far apart the service of two clients can drift while both have requests waiting.

    The theorem of the paper: ``2 * max(w_in * longest prompt, w_out * tokens of the running
    batch)``. A batch's tokens are at most what the KV pool holds.
    """
    return 2 * max(input_weight * longest_prompt_tokens, output_weight * batch_tokens)

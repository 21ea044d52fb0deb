"""Prompts whose KV comes from elsewhere: requests wait for it with blocks held, under every policy.

The connector is a stand-in for one of prefill/decode disaggregation; scheduler and KV manager are
vLLM's own.
"""

import dataclasses
import random

import pytest
from fuzz_policies import POLICIES
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import KVConnectorOutput

from lab3.driver import Driver
from lab3.engine import StubModel, create_requests, create_scheduler, token_at
from lab3.invariants import InvariantError, kv_conservation, requests_conserved, seats

every_policy = pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)


class RemoteKV:
    """Offers half of every second prompt from afar; the transfer ends some steps later."""

    requires_kv_delivery = False

    def __init__(self) -> None:
        self.loading: dict[str, int] = {}
        self.loaded: set[str] = set()

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        if int(request.request_id) % 2 or request.request_id in self.loaded:
            return 0, False
        return request.num_prompt_tokens // 2, True

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        if num_external_tokens and request.request_id not in self.loaded:
            self.loading[request.request_id] = 3

    def request_finished(self, request, block_ids):
        return False, None

    def get_loaded_kv_cache_group_ids(self, request):
        return ()

    def arrived(self) -> set[str]:
        """One step passes; who has its KV now."""
        self.loading = {id_: steps - 1 for id_, steps in self.loading.items()}
        done = {id_ for id_, steps in self.loading.items() if steps <= 0}
        for id_ in done:
            del self.loading[id_]
        self.loaded |= done
        return done

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: None


class RemoteModel(StubModel):
    """Reports finished transfers as a worker does, beside the batch's tokens."""

    connector: RemoteKV

    def execute(self, scheduler, output):
        result = super().execute(scheduler, output)
        arrived = self.connector.arrived()
        return dataclasses.replace(
            result, kv_connector_output=KVConnectorOutput(finished_recving=arrived)
        )


class ForgetsWhoHoldsKV(Scheduler):
    """Broken on purpose: loses a request whose KV is on its way."""

    def schedule(self, *args, **kwargs):
        if self.kv_holding_waiting:
            self.kv_holding_waiting.pop_request()
        return super().schedule(*args, **kwargs)


def serve(cls, settings, async_scheduling):
    """40 requests with all laws checked after every step; their output lengths, and the driver."""
    scheduler = create_scheduler(
        cls,
        settings=settings,
        num_blocks=40,
        max_num_seqs=6,
        max_num_batched_tokens=128,
        async_scheduling=async_scheduling,
    )
    scheduler.connector = connector = RemoteKV()
    model = RemoteModel()
    model.connector = connector
    driver = Driver(scheduler, model=model)
    pick = random.Random(3)
    lengths = [pick.randint(20, 120) for _ in range(40)]
    outputs = [pick.randint(2, 30) for _ in lengths]
    requests = create_requests(
        40,
        prompt_tokens=lengths,
        output_tokens=outputs,
        extra_args=[{"predicted_length": length, "client": "ab"[length % 2]} for length in outputs],
    )
    most_waiting = 0
    for round_ in range(3000):
        if round_ % 3 == 0 and requests:
            driver.add(requests.pop(0))
        if not (driver.has_work or requests):
            break
        driver.step()
        most_waiting = max(most_waiting, len(scheduler.kv_holding_waiting))
        seats(scheduler)
        requests_conserved(scheduler, driver.unfinished)
        kv_conservation(scheduler)
    assert most_waiting > 0
    return outputs, driver


@every_policy
@pytest.mark.parametrize("async_scheduling", [False, True], ids=["sync", "async"])
def test_everybody_is_served_and_every_block_comes_back(policy, async_scheduling):
    outputs, driver = serve(policy.cls, policy.settings, async_scheduling)

    assert driver.scheduler.connector.loaded == {str(number) for number in range(0, 40, 2)}
    assert driver.tokens == {
        str(number): [token_at(str(number), position) for position in range(length)]
        for number, length in enumerate(outputs)
    }
    assert driver.scheduler.get_kv_cache_usage() == 0.0


def test_a_scheduler_that_loses_one_of_them_is_found_out():
    with pytest.raises(InvariantError):
        serve(ForgetsWhoHoldsKV, {}, async_scheduling=False)

"""vLLM's own EngineCore on a stub executor whose batches complete late.

A CPU always runs EngineCore synchronously, a GPU always with two batches in flight; this is the
only place where the second path meets our schedulers. The executor keeps a model runner's books
and sees nothing but SchedulerOutputs.
"""

import gc
import random
import time
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
import torch
from fuzz_policies import POLICIES
from vllm import envs
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.core import EngineCore
from vllm.v1.executor.abstract import Executor
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, ModelRunnerOutput

from lab3.engine import create_requests, create_vllm_config, token_at
from lab3.invariants import Runner


class LateExecutor(Executor):
    """Computes a batch when it is launched and hands it over up to 2 ms later, in order."""

    def _init_executor(self):
        self.runner = Runner(self.cache_config.block_size, self.vllm_config.use_v2_model_runner)
        self.device = ThreadPoolExecutor(max_workers=1)
        self.random = random.Random(0)
        self.num_unread = self.most_unread = 0
        self.launched = None

    def collective_rpc(self, method, timeout=None, args=(), kwargs=None, non_block=False):
        spec = FullAttentionSpec(
            block_size=self.cache_config.block_size, num_kv_heads=1, head_size=1, dtype=torch.half
        )
        answers = {
            "get_kv_cache_spec": {"layer": spec},
            "get_supported_kv_cache_layouts": ["LBNHC"],
            "determine_available_memory": 1 << 30,
        }
        return [answers[method]] if method in answers else []

    def execute_model(self, scheduler_output, non_block=False):
        self.runner.begin(scheduler_output)
        sampled = {
            id_: self._sample(id_, num_new)
            for id_, num_new in scheduler_output.num_scheduled_tokens.items()
        }
        self.runner.compute(scheduler_output, sampled)
        future = Future()
        future.set_result(None if sampled else EMPTY_MODEL_RUNNER_OUTPUT)
        self.launched = ModelRunnerOutput(
            req_ids=list(sampled),
            req_id_to_index={id_: index for index, id_ in enumerate(sampled)},
            sampled_token_ids=list(sampled.values()),
        )
        return future

    def sample_tokens(self, grammar_output, non_block=False):
        output, delay_s = self.launched, self.random.random() * 2e-3
        self.num_unread += 1
        self.most_unread = max(self.most_unread, self.num_unread)
        future = self.device.submit(self._finish, output, delay_s)
        return future if non_block else future.result()

    def check_health(self):
        pass

    def shutdown(self):
        self.device.shutdown()

    def _sample(self, id_, num_new):
        row = self.runner.rows[id_]
        if row.computed + num_new < row.num_tokens:
            return []
        return [token_at(id_, row.num_tokens - row.num_prompt_tokens)]

    def _finish(self, output, delay_s):
        time.sleep(delay_s)
        self.num_unread -= 1
        return output


@pytest.fixture
def make_core():
    cores = []

    def make(policy, **knobs):
        knobs = {"num_blocks": 40, "max_num_seqs": 6, "max_num_batched_tokens": 64} | knobs
        config = create_vllm_config(policy.cls, settings=policy.settings, **knobs)
        config.cache_config.num_gpu_blocks_override = knobs["num_blocks"]
        cores.append(EngineCore(config, LateExecutor, log_stats=True))
        return cores[-1]

    yield make
    for core in cores:
        core.model_executor.shutdown()
        core.scheduler.shutdown()
    # EngineCore freezes the heap and caches the environment; later tests want neither.
    gc.unfreeze()
    envs.disable_envs_cache()


def submit(core, requests):
    for request in requests:
        wire = EngineCoreRequest(
            request_id=request.request_id,
            prompt_token_ids=request.prompt_token_ids,
            mm_features=None,
            sampling_params=request.sampling_params,
            pooling_params=None,
            arrival_time=request.arrival_time,
            lora_request=None,
            cache_salt=None,
            data_parallel_rank=None,
            priority=request.priority,
        )
        core.add_request(*core.preprocess_add_request(wire))


def serve(core, tokens, num_iterations=None):
    """Iterate the core until it is idle or so often; adds what it sends to ``tokens``."""
    for _ in range(num_iterations or 5000):
        if not (core.scheduler.has_requests() or core.batch_queue):
            return
        outputs, model_executed = core.step_fn()
        core.post_step(model_executed)
        for client in (outputs or {}).values():
            for output in client.outputs:
                tokens.setdefault(output.request_id, []).extend(output.new_token_ids)
    assert num_iterations, "not idle after 5000 iterations"


def workload(num_requests=24):
    return create_requests(
        num_requests,
        prompt_tokens=[10 + 7 * (i % 13) for i in range(num_requests)],
        output_tokens=[1 + 5 * (i % 9) for i in range(num_requests)],
        extra_args=[{"predicted_length": 1 + 4 * (i % 9)} for i in range(num_requests)],
    )


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
@pytest.mark.parametrize("async_scheduling", [False, True], ids=["sync", "async"])
def test_core_serves_every_request_its_own_tokens(make_core, policy, async_scheduling):
    core = make_core(policy, async_scheduling=async_scheduling, enable_prefix_caching=True)
    requests = workload()
    submit(core, requests)
    tokens = {}

    serve(core, tokens)

    assert (core.batch_queue is not None) == async_scheduling
    assert core.model_executor.most_unread == 1 + async_scheduling
    assert tokens == {
        r.request_id: [token_at(r.request_id, p) for p in range(r.max_tokens)] for r in requests
    }
    assert core.scheduler.get_kv_cache_usage() == 0.0
    assert not core.model_executor.runner.rows


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_aborts_while_a_batch_is_out(make_core, policy):
    """Clients hang up between schedule() and the answer: EngineCore drains them before it."""
    core = make_core(policy, async_scheduling=True)
    requests = workload()
    submit(core, requests)
    tokens = {}
    for round_ in range(8):
        serve(core, tokens, num_iterations=4)
        core.aborts_queue.put([str(3 * round_), str(3 * round_ + 1)])

    serve(core, tokens)

    kept = [r for r in requests if int(r.request_id) % 3 == 2]
    assert all(len(tokens[r.request_id]) == r.max_tokens for r in kept)
    assert not core.scheduler.requests
    assert core.scheduler.get_kv_cache_usage() == 0.0
    assert not core.model_executor.runner.rows

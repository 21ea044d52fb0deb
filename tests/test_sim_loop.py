"""The simulator's laws: closed forms, conservation, determinism, the real decisions."""

import itertools
import json
import time
from dataclasses import replace

import numpy as np
import pytest

from lab3.base_scheduler import LabScheduler
from lab3.engine import create_scheduler
from lab3.sim.bounds import lower_bounds
from lab3.sim.cost_model import FittedCost, Roofline
from lab3.sim.jobs import Job, run_jobs, simulate
from lab3.sim.lean import create_lean_scheduler
from lab3.sim.loop import SimulatedEngine, SimulationError
from lab3.sim.workload import Workload, random_workload

COST = Roofline.named("qwen3-0.6b", "h200")
POLICIES = [
    None,
    "my_scheduler.PassthroughScheduler",
    "my_scheduler.StepExclusivePrefillFirstScheduler",
    "my_scheduler.SJFScheduler",
    "my_scheduler.FairShareScheduler",
    "my_scheduler.AdaptiveChunkScheduler",
    "my_scheduler.PureDecodeFirstScheduler",
    "my_scheduler.DLAScheduler",
    "my_scheduler.DLASRPTScheduler",
]
SCARCE = Job(
    num_prompts=30,
    input_len=60,
    output_len=40,
    range_ratio=0.5,
    request_rate=400.0,
    predictions="noise:0.5,missing:0.3",
    max_output_tokens=200,
    kv_blocks=40,
    max_num_seqs=16,
    max_num_batched_tokens=128,
    model="qwen3-0.6b",
    hardware="h200",
    seed=3,
)


def steps_text(simulation) -> str:
    return json.dumps([simulation.steps, simulation.token_times_s])


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_one_request_alone_takes_the_sum_of_its_steps(is_async):
    cost = FittedCost(1000.0, {"prefill_tokens": 10.0})
    alone = Workload("one", (5.0,), (100,), (4,))
    scheduler = create_lean_scheduler(num_blocks=20, async_scheduling=is_async)
    done = SimulatedEngine(scheduler, alone, cost).simulate()
    assert np.array(done.token_times_s[0]) - 5.0 == pytest.approx([0.002, 0.003, 0.004, 0.005])
    assert done.end_s == pytest.approx(0.005)


def test_the_second_batch_in_flight_waits_for_the_first():
    cost = FittedCost(1000.0, {})
    two = Workload("two", (0.0, 0.0005), (10, 10), (3, 3))
    scheduler = create_lean_scheduler(num_blocks=20, async_scheduling=True)
    done = SimulatedEngine(scheduler, two, cost).simulate()
    # Request 1 comes while batches 1 and 2 of request 0 are in flight, so it joins batch 3.
    assert done.queued_s == pytest.approx([0.0, 0.001])
    assert done.token_times_s[1][0] == pytest.approx(0.003)


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("policy", POLICIES)
def test_every_token_is_made_once_in_order_and_no_policy_beats_the_bound(policy, is_async):
    job = replace(SCARCE, scheduler=policy, async_scheduling=is_async)
    done = simulate(job)
    workload = done.workload
    for times, sent, tokens in zip(
        done.token_times_s, done.arrival_s, workload.output_tokens, strict=True
    ):
        assert len(times) == tokens
        assert times[0] > sent
        assert times == sorted(times)
    scheduled = sum(s["prefill_tokens"] + s["decode_tokens"] for s in done.steps)
    recomputed = sum(s["recomputed_tokens"] for s in done.steps)
    needed = sum(workload.input_tokens) + sum(workload.output_tokens) - len(workload)
    # Async scheduling may compute one token past an end that the model chose.
    assert needed <= scheduled - recomputed <= needed + is_async * len(workload)
    assert sum(s["preemptions"] for s in done.steps) == done.preemptions
    bounds = lower_bounds(workload, COST, job.kv_blocks, job.block_size)
    assert done.end_s >= bounds.makespan_s
    first_s = np.array([t[0] for t in done.token_times_s]) - done.arrival_s
    last_s = np.array([t[-1] for t in done.token_times_s]) - done.arrival_s
    assert (first_s >= bounds.ttft_s).all()
    assert (last_s >= bounds.e2e_s).all()


def test_the_scarce_pool_of_these_tests_does_preempt():
    assert simulate(SCARCE).preemptions > 0


@pytest.mark.parametrize("caching", [False, True], ids=["no-cache", "cache"])
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("policy", [None, "my_scheduler.DLAScheduler"])
def test_the_shortcut_changes_no_decision(policy, is_async, caching):
    job = replace(SCARCE, scheduler=policy, async_scheduling=is_async, prefix_len=20)
    knobs = {
        "num_blocks": job.kv_blocks,
        "max_num_seqs": job.max_num_seqs,
        "max_num_batched_tokens": job.max_num_batched_tokens,
        "enable_prefix_caching": caching,
        "async_scheduling": is_async,
    }
    texts = [
        steps_text(SimulatedEngine(make(policy, **knobs), job.workload(), COST).simulate())
        for make in (create_scheduler, create_lean_scheduler)
    ]
    assert texts[0] == texts[1]


def test_prefix_caching_saves_recomputation():
    job = replace(SCARCE, max_num_seqs=8)
    without, having = (simulate(replace(job, enable_prefix_caching=on)) for on in (False, True))
    tax = [sum(s["recomputed_tokens"] for s in done.steps) for done in (without, having)]
    assert without.preemptions > 0
    assert tax[1] < tax[0]


def test_the_step_record_is_that_of_the_live_recorder(tmp_path):
    path = tmp_path / "steps.jsonl"
    settings = {"record": str(path)}
    job = replace(SCARCE, scheduler="my_scheduler.PassthroughScheduler", settings=settings)
    done = simulate(job)
    live = [json.loads(line) for line in path.read_text().splitlines()]
    clocks = {"t_s", "done_s", "ttft_ms", "itl_ms", "counters"}
    assert len(live) == len(done.steps)
    for theirs, ours in zip(live, done.steps, strict=True):
        assert {k: v for k, v in theirs.items() if k not in clocks} == {
            k: v for k, v in ours.items() if k not in clocks
        }
        assert sum(n for _, n in theirs["itl_ms"]) == sum(n for _, n in ours["itl_ms"])
        assert len(theirs["ttft_ms"]) == len(ours["ttft_ms"])


@pytest.mark.parametrize("policy", [None, "my_scheduler.AdaptiveChunkScheduler"])
def test_the_same_seed_gives_the_same_bytes(policy):
    job = replace(SCARCE, scheduler=policy)
    assert steps_text(simulate(job)) == steps_text(simulate(job))
    assert steps_text(simulate(job)) != steps_text(simulate(replace(job, seed=4)))


@pytest.mark.parametrize(
    "policy", ["AdaptiveChunkScheduler", "FairShareScheduler", "DLASRPTScheduler"]
)
def test_real_time_plays_no_part(monkeypatch, policy):
    def real_clock():
        raise AssertionError("a policy read the real clock")

    job = replace(SCARCE, scheduler=f"my_scheduler.{policy}")
    expected = steps_text(simulate(job))
    hours = itertools.count(1.0, 3600.0)
    monkeypatch.setattr(LabScheduler, "clock", staticmethod(real_clock))
    monkeypatch.setattr(time, "monotonic", lambda: next(hours))
    monkeypatch.setattr(time, "time", lambda: next(hours))
    assert steps_text(simulate(job)) == expected


def test_noise_follows_the_seed_and_the_quantiles():
    plain = FittedCost(1000.0, {})
    noisy = replace(plain, ratio_quantiles=(2.0, 2.0, 4.0))
    workload = random_workload(20, 10, 20, seed=1, rate=1000.0)

    def makespan_s(cost, seed):
        engine = SimulatedEngine(create_lean_scheduler(num_blocks=100), workload, cost, seed=seed)
        return engine.simulate().end_s

    assert makespan_s(noisy, 1) == makespan_s(noisy, 1) != makespan_s(noisy, 2)
    assert makespan_s(noisy, 1) > 2 * makespan_s(plain, 1) * 0.9


def test_an_adaptive_policy_is_given_the_virtual_clock():
    cost = FittedCost(5000.0, {"prefill_tokens": 100.0})
    workload = random_workload(60, 400, 40, seed=1, rate=15.0)
    knobs = {"num_blocks": 3000, "max_num_seqs": 64, "settings": {"itl_target_ms": 20.0}}
    scheduler = create_lean_scheduler("my_scheduler.AdaptiveChunkScheduler", **knobs)
    done = SimulatedEngine(scheduler, workload, cost).simulate()
    late = [s for s in done.steps[len(done.steps) // 2 :] if s["decode_requests"]]
    step_ms = [1e3 * (s["done_s"] - s["t_s"]) for s in late]
    assert np.median(step_ms) <= 20.5


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        (Workload("w", (0.0, 1.0), (16, 120), (4, 20)), "request 1 .* can never fit: the KV pool"),
        (Workload("w", (0.0,), (16,), (300,)), "request 0 .* is longer than max_model_len 200"),
    ],
)
def test_a_request_that_can_never_fit_is_named_before_the_start(workload, message):
    scheduler = create_lean_scheduler(num_blocks=9, max_model_len=200)
    with pytest.raises(SimulationError, match=message):
        SimulatedEngine(scheduler, workload, COST).simulate()


def test_no_progress_ends_with_a_message():
    scheduler = create_lean_scheduler(num_blocks=20)
    scheduler.max_num_active_reqs = 0
    workload = Workload("w", (0.0, 2.0), (16, 16), (4, 4))
    with pytest.raises(SimulationError, match=r"no progress at 2\.000 s .*2 waiting"):
        SimulatedEngine(scheduler, workload, COST).simulate()


def num_steps(job: Job) -> int:
    return simulate(job).num_steps


def test_jobs_side_by_side_give_what_they_give_alone():
    jobs = [replace(SCARCE, seed=seed, num_prompts=8) for seed in range(3)]
    several = list(run_jobs(jobs, num_steps, processes=2, quiet=True))
    assert [job for job, _ in several] == jobs
    assert [steps for _, steps in several] == [num_steps(job) for job in jobs]

"""The model-free engine: factories, stub model, step order, virtual clock, stall detector."""

import time

import pytest
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.scheduler import Scheduler

from lab3.driver import Driver, Stalled
from lab3.engine import (
    EOS_TOKEN_ID,
    StubModel,
    create_requests,
    create_scheduler,
    grammar_ready,
    token_at,
)
from lab3.invariants import Invariants
from my_scheduler import SJFScheduler

ALL_MODES = [
    {},
    {"async_scheduling": True},
    {"async_scheduling": True, "runner_v2": True},
    {"enable_prefix_caching": True},
    {"enable_prefix_caching": True, "async_scheduling": True},
    {"policy": "priority"},
    {"enable_chunked_prefill": False, "max_num_batched_tokens": 128},
    {"num_spec_tokens": 3},
    {"num_spec_tokens": 3, "async_scheduling": True},
    {"watermark": 0.1, "long_prefill_token_threshold": 16},
]


@pytest.mark.parametrize("mode", ALL_MODES, ids=str)
def test_every_mode_serves_every_request_its_own_tokens(mode):
    """Scarce KV, chunked prompts, preemptions: the token sequences stay those of the requests."""
    knobs = {"num_blocks": 26, "max_num_seqs": 6, "max_num_batched_tokens": 64} | mode
    invariants = Invariants()
    driver = Driver(create_scheduler(**knobs), observers=[invariants])
    requests = create_requests(12, prompt_tokens=range(20, 80, 5), output_tokens=40)
    driver.add(*requests)

    driver.run()

    invariants.finish(driver)
    assert sum(r.num_preemptions for r in requests) > 0
    assert driver.tokens == {str(i): [token_at(str(i), p) for p in range(40)] for i in range(12)}


def test_classes_are_vllms_own_or_the_ones_named():
    assert type(create_scheduler()) is Scheduler
    assert type(create_scheduler(async_scheduling=True)) is AsyncScheduler
    assert type(create_scheduler("my_scheduler.SJFScheduler")) is SJFScheduler
    assert type(create_scheduler(SJFScheduler)) is SJFScheduler


def test_settings_reach_the_class():
    scheduler = create_scheduler(SJFScheduler, settings={"aging_tokens_per_s": 7})
    assert scheduler.settings.aging_tokens_per_s == 7.0
    with pytest.raises(ValueError, match="aging_tokens_per_s"):
        create_scheduler(SJFScheduler, settings={"aging": 7})


def test_building_is_much_cheaper_than_the_first_time():
    """Fuzzing builds thousands: later builds must not read the configuration again."""
    create_scheduler()
    begin_s = time.perf_counter()
    for _ in range(20):
        create_scheduler()
    per_build_s = (time.perf_counter() - begin_s) / 20

    begin_s = time.perf_counter()
    driver = Driver(create_scheduler(max_num_seqs=16))
    driver.add(*create_requests(200, output_tokens=64))
    driver.run()
    assert per_build_s < time.perf_counter() - begin_s


def test_true_output_length_is_the_models_secret():
    """Until the first stop, two runs that differ only in true lengths schedule the same."""
    shapes = []
    for true_tokens in (5, 30):
        model = StubModel(true_output_tokens={"0": true_tokens})
        driver = Driver(create_scheduler(), model=model)
        driver.add(*create_requests(3, output_tokens=40, ignore_eos=False))
        shapes.append([step.output.num_scheduled_tokens for step in driver.steps()])
        assert len(driver.tokens["0"]) == true_tokens
        assert driver.tokens["0"][-1] == EOS_TOKEN_ID
        assert len(driver.tokens["1"]) == 40
    assert shapes[0][:5] == shapes[1][:5]
    assert shapes[0][5] != shapes[1][5]


def test_two_deep_schedules_twice_before_the_first_output():
    driver = Driver(create_scheduler(async_scheduling=True))
    driver.add(*create_requests(1, output_tokens=3))

    assert driver.step() is None
    assert len(driver.in_flight) == 1
    first = driver.step()

    assert first.tokens == {"0": [token_at("0", 0)]}
    assert driver.in_flight[0].output.num_scheduled_tokens == {"0": 1}


def test_plain_scheduler_two_deep_leaves_requests_in_flight_alone():
    """A GPU's batch queue with a subclass of plain Scheduler: decodes only every second step."""
    invariants = Invariants()
    driver = Driver(create_scheduler(Scheduler, async_scheduling=True), observers=[invariants])
    driver.add(*create_requests(4, output_tokens=8))

    sizes = [step.output.total_num_scheduled_tokens for step in driver.steps()]

    invariants.finish(driver)
    assert 0 in sizes
    assert all(len(tokens) == 8 for tokens in driver.tokens.values())


@pytest.mark.parametrize("depth", [1, 2])
def test_virtual_clock_runs_batches_one_after_the_other(depth):
    driver = Driver(create_scheduler(async_scheduling=depth == 2), step_time=lambda step: 0.5)
    driver.add(*create_requests(1, output_tokens=4))

    done_s = [s.done_s for s in driver.steps() if s.output.total_num_scheduled_tokens]

    assert done_s == [0.5, 1.0, 1.5, 2.0]
    assert driver.now_s == 2.0


def test_stall_detector_names_the_request_that_blocks():
    """Prompts of 200 and three of 20 tokens, 8 usable blocks: vLLM's FCFS waits for ever."""
    driver = Driver(create_scheduler(num_blocks=9, max_model_len=4096), stall_steps=5)
    driver.add(*create_requests(4, prompt_tokens=[200, 20, 20, 20]))

    with pytest.raises(Stalled, match=r"8 of 8 KV blocks free; head of the queue: request 0 .* 13"):
        driver.run()
    assert driver.num_steps == 5


def test_run_stops_when_it_takes_too_long():
    driver = Driver(create_scheduler())
    driver.add(*create_requests(1, output_tokens=50))
    with pytest.raises(RuntimeError, match="not done after 10 steps: 1 running"):
        driver.run(max_steps=10)


def test_pause_is_no_stall_and_abort_frees_everything():
    driver = Driver(create_scheduler(), stall_steps=3)
    driver.add(*create_requests(4))
    driver.step()
    driver.pause(PauseState.PAUSED_ALL)
    for _ in range(10):
        driver.step()
    driver.pause(PauseState.UNPAUSED)

    driver.abort("0", "1", "2", "3", "unknown")
    driver.run()

    assert set(driver.finished.values()) == {"abort"}
    assert driver.describe() == "0 running, 0 waiting, 1023 of 1023 KV blocks free"


def test_requests_carry_what_was_asked():
    requests = create_requests(
        2, prompt_tokens=[5, 9], priority=[1, 0], extra_args=[{"predicted_length": 8}, None]
    )
    assert [r.num_prompt_tokens for r in requests] == [5, 9]
    assert [r.priority for r in requests] == [1, 0]
    assert [r.sampling_params.extra_args for r in requests] == [{"predicted_length": 8}, None]
    assert requests[0].prompt_token_ids != requests[1].prompt_token_ids[:5]


def test_same_prompts_hit_the_prefix_cache():
    driver = Driver(create_scheduler(enable_prefix_caching=True))
    driver.add(*create_requests(1, prompt_tokens=64))
    driver.run()
    driver.add(*create_requests(2, prompt_tokens=64, same_prompt=True, first_id=1))
    driver.step()
    driver.run()
    (again,) = create_requests(1, prompt_tokens=64, same_prompt=True, first_id=3)
    driver.add(again)

    step = driver.step()

    assert step.output.scheduled_new_reqs[0].num_computed_tokens == 48
    assert step.output.num_scheduled_tokens == {"3": 16}


def test_structured_request_waits_for_its_grammar():
    driver = Driver(create_scheduler())
    constrained, plain = create_requests(2, structured=[True, False], output_tokens=2)
    driver.add(constrained, plain)

    assert list(driver.step().tokens) == ["1"]
    grammar_ready(constrained)
    driver.run()

    assert set(driver.finished) == {"0", "1"}

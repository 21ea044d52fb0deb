"""The base class: identical to vLLM's scheduler, sync and async, and its levers."""

import pytest
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from lab3.base_scheduler import LabScheduler
from lab3.driver import Driver
from lab3.engine import create_requests, create_scheduler


def run(cls, **knobs):
    """Step compositions and tokens of a run in a scarce KV pool."""
    scheduler = create_scheduler(cls, num_blocks=22, max_num_batched_tokens=64, **knobs)
    driver = Driver(scheduler)
    driver.add(*create_requests(8, prompt_tokens=[90, 20, 33, 70, 12, 40, 100, 25]))
    steps = []
    while driver.has_work:
        step = driver.step()
        if step:
            steps.append((step.output.num_scheduled_tokens, step.output.preempted_req_ids))
    return steps, driver.tokens


@pytest.mark.parametrize("async_scheduling", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize("enable_prefix_caching", [False, True], ids=["nocache", "cache"])
@pytest.mark.parametrize(
    ("cls", "settings"),
    [
        ("my_scheduler.PassthroughScheduler", {}),
        ("my_scheduler.StepExclusivePrefillFirstScheduler", {"disabled": True}),
        ("my_scheduler.SJFScheduler", {"disabled": True}),
    ],
    ids=["passthrough", "A-disabled", "sjf-disabled"],
)
def test_schedules_exactly_as_vllm(cls, settings, enable_prefix_caching, policy, async_scheduling):
    knobs = {
        "enable_prefix_caching": enable_prefix_caching,
        "policy": policy,
        "async_scheduling": async_scheduling,
    }
    upstream = run(AsyncScheduler if async_scheduling else Scheduler, **knobs)
    assert run(cls, settings=settings, **knobs) == upstream


def test_disabled_class_is_the_base_itself():
    scheduler = create_scheduler("my_scheduler.SJFScheduler", settings={"disabled": True})
    assert type(scheduler) is LabScheduler
    assert scheduler.settings.disabled


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"agng_tokens_per_s": 1}, "unknown lab3 setting 'agng_tokens_per_s'.*aging_tokens_per_s"),
        ({"aging_tokens_per_s": "fast"}, "aging_tokens_per_s must be a float, not 'fast'"),
        ({"aging_tokens_per_s": -1}, "aging_tokens_per_s must be 0 or more"),
        ({"aging_tokens_per_s": True}, "must be a float, not True"),
        ({"disabled": 1}, "disabled must be a bool, not 1"),
        ({"record": None}, "record must be a str, not None"),
    ],
)
def test_bad_settings_are_one_clear_line(settings, message):
    with pytest.raises(ValueError, match=message) as caught:
        create_scheduler("my_scheduler.SJFScheduler", settings=settings)
    assert "\n" not in str(caught.value)


def test_skipped_requests_keep_seat_and_place_for_one_step():
    scheduler = create_scheduler("my_scheduler.PassthroughScheduler", max_num_seqs=2)
    driver = Driver(scheduler)
    driver.add(*create_requests(3))
    driver.step()
    first, second = scheduler.running

    scheduler.skip_this_step([first])
    assert set(driver.step().output.num_scheduled_tokens) == {second.request_id}
    assert scheduler.running == [first, second]
    assert set(driver.step().output.num_scheduled_tokens) == {first.request_id, second.request_id}


def test_no_admission_is_undone_when_schedule_raises():
    scheduler = create_scheduler("my_scheduler.PassthroughScheduler", max_num_seqs=4)

    def fail_inside():
        with scheduler.no_admission():
            assert scheduler.max_num_active_reqs == 0
            raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        fail_inside()
    assert scheduler.max_num_active_reqs == 4


def test_has_room_for_agrees_with_allocation():
    """For every prompt length the prediction equals what schedule() then does."""
    for prompt_tokens in range(16, 161, 8):
        scheduler = create_scheduler("my_scheduler.PassthroughScheduler", num_blocks=11)
        driver = Driver(scheduler)
        driver.add(*create_requests(1, prompt_tokens=60, output_tokens=4))
        driver.step()
        driver.add(*create_requests(1, prompt_tokens=prompt_tokens, first_id=1))
        request = scheduler.next_to_admit()
        fits = scheduler.has_room_for(request, request.num_tokens)
        driver.step()
        assert fits == (request in scheduler.running), prompt_tokens


def test_next_to_admit_is_none_without_a_seat():
    scheduler = create_scheduler("my_scheduler.PassthroughScheduler", max_num_seqs=1)
    driver = Driver(scheduler)
    driver.add(*create_requests(2))
    assert scheduler.next_to_admit().request_id == "0"
    driver.step()
    assert scheduler.next_to_admit() is None

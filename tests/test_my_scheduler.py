"""The lab's policies do what they say, on vLLM's real scheduler without a model.

That every class also keeps the scheduler's laws is the business of ``test_fuzz.py``.
"""

import random

import pytest
from scheduling import Admissions, clients, drive
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.request import Request

import my_scheduler
from lab3.base_scheduler import LabScheduler
from lab3.driver import Driver
from lab3.engine import create_requests, create_scheduler
from lab3.invariants import InvariantError, ServiceGap, bounded_overtaking
from lab3.policy.fairness import service_gap_bound

# Every class


CLASSES = [name for name in my_scheduler.__all__ if name != "PassthroughScheduler"]


@pytest.mark.parametrize("name", my_scheduler.__all__)
def test_every_class_takes_the_flag_of_schedule_both_ways(name):
    scheduler = create_scheduler(f"my_scheduler.{name}")
    for request in create_requests(3):
        scheduler.add_request(request)
    assert isinstance(scheduler.schedule(False), SchedulerOutput)
    assert isinstance(scheduler.schedule(throttle_prefills=True), SchedulerOutput)


@pytest.mark.parametrize("name", CLASSES)
def test_switched_off_every_class_is_the_base_alone(name):
    scheduler = create_scheduler(f"my_scheduler.{name}", settings={"disabled": True})
    assert type(scheduler) is LabScheduler


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("StepExclusivePrefillFirstScheduler", {"max_prefill_steps": -1}, "0 .no limit."),
        ("PureDecodeFirstScheduler", {"fill": 1}, "fill must be a bool"),
        ("SJFScheduler", {"aging_tokens_per_s": -0.5}, "0 or more"),
        ("FairShareScheduler", {"output_weight": 0}, "above 0"),
        ("AdaptiveChunkScheduler", {"itl_target_ms": 0}, "above 0"),
        ("AdaptiveChunkScheduler", {"min_chunk_tokens": 0}, "1 or more"),
        ("AdaptiveChunkScheduler", {"rule": "square"}, "one of itl, linear"),
        ("DLAScheduler", {"victim": "newest"}, "one of remaining"),
        ("DLAScheduler", {"admission": True}, "one of off"),
        ("DLASRPTScheduler", {"aging_tokens_per_s": -1}, "0 or more"),
        ("KVPeakScheduler", {"kv_peek_file": "x"}, "did you mean 'kv_peak_file'"),
    ],
)
def test_a_bad_setting_is_refused_in_one_line_that_names_the_class(name, settings, words):
    with pytest.raises(ValueError, match=words) as error:
        create_scheduler(f"my_scheduler.{name}", settings=settings)
    assert name in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", CLASSES)
def test_extra_args_that_n_children_share_are_never_written_to(name):
    shared = {"client": "a", "predicted_length": 5}
    driver = drive(name, num_blocks=24, max_num_seqs=4)
    driver.add(*create_requests(8, output_tokens=20, extra_args=shared))
    for request in driver.scheduler.requests.values():
        request.sampling_params.extra_args = shared
    driver.run()
    assert shared == {"client": "a", "predicted_length": 5}
    assert len(driver.finished) == 8


# Prefill first


def phases(driver: Driver) -> list[tuple[int, int]]:
    """(prefill requests, decode requests) of every step until the end."""
    seen: set[str] = set()
    steps = []
    for step in driver.steps():
        if ids := set(step.output.num_scheduled_tokens):
            steps.append((len(ids - seen), len(ids & seen)))
        seen |= {id_ for id_, tokens in step.tokens.items() if tokens}
    return steps


def test_prefill_first_takes_whole_prompts_and_decodes_only_when_none_is_left():
    driver = drive("StepExclusivePrefillFirstScheduler", max_num_batched_tokens=250)
    driver.add(*create_requests(5, prompt_tokens=100, output_tokens=4))
    assert phases(driver) == [(2, 0), (2, 0), (1, 0), (0, 5), (0, 5), (0, 5)]


def test_prefill_first_cuts_a_prompt_larger_than_the_budget_and_decodes_nothing_meanwhile():
    driver = drive("StepExclusivePrefillFirstScheduler", max_num_batched_tokens=64)
    driver.add(*create_requests(1, prompt_tokens=10, output_tokens=9))
    driver.step()
    driver.add(*create_requests(1, first_id=1, prompt_tokens=200, output_tokens=1))
    tokens = [step.output.num_scheduled_tokens for step in driver.steps()][:5]
    assert tokens == [{"1": 64}, {"1": 64}, {"1": 64}, {"1": 8}, {"0": 1}]


def test_prefill_first_with_a_limit_lets_decodes_in_between_prompts():
    driver = drive(
        "StepExclusivePrefillFirstScheduler",
        {"max_prefill_steps": 2},
        max_num_batched_tokens=100,
    )
    driver.add(*create_requests(6, prompt_tokens=100, output_tokens=9))
    assert phases(driver)[:8] == [
        (1, 0), (1, 0), (0, 2), (1, 0), (1, 0), (0, 4), (1, 0), (1, 0),
    ]  # fmt: skip


# Shortest job first


def sjf_order(aging: float, num_late: int) -> tuple[list[str], dict[str, Request]]:
    """Admissions while one prompt of 1000 tokens waits and a short one comes every step."""
    driver = drive("SJFScheduler", {"aging_tokens_per_s": aging}, max_num_seqs=1, num_blocks=100)
    admissions = Admissions()
    driver.observers.append(admissions)
    requests = create_requests(2, prompt_tokens=[10, 1000], output_tokens=1, arrival_s=0.0)
    driver.add(*requests)
    for number in range(2, num_late):
        late = create_requests(
            1, first_id=number, prompt_tokens=10, output_tokens=1, arrival_s=driver.now_s
        )
        driver.add(*late)
        requests += late
        driver.step()
    driver.run()
    return admissions.ids, {r.request_id: r for r in requests}


def test_sjf_serves_short_prompts_first_and_equal_ones_by_arrival():
    driver = drive("SJFScheduler", max_num_seqs=1)
    admissions = Admissions()
    driver.observers.append(admissions)
    driver.add(*create_requests(5, prompt_tokens=[50, 9, 30, 9, 30]))
    driver.run()
    assert admissions.ids == ["1", "3", "2", "4", "0"]


def test_sjf_with_aging_bounds_how_long_a_long_prompt_waits():
    ids, requests = sjf_order(aging=2000.0, num_late=300)
    assert 50 < ids.index("1") < 150
    bounded_overtaking([requests[id_] for id_ in ids], 2000.0)


def test_sjf_without_aging_starves_a_long_prompt_as_long_as_short_ones_come():
    ids, requests = sjf_order(aging=0.0, num_late=300)
    assert ids[-1] == "1"
    with pytest.raises(InvariantError, match="bounded wait"):
        bounded_overtaking([requests[id_] for id_ in ids], 2000.0)


# Pure decode first


def test_decode_first_taken_literally_admits_one_budget_of_prompts_at_a_time():
    driver = drive("PureDecodeFirstScheduler", max_num_batched_tokens=200, max_num_seqs=16)
    driver.add(*create_requests(6, prompt_tokens=100, output_tokens=5))
    assert phases(driver) == ([(2, 0)] + [(0, 2)] * 4) * 3


def test_decode_first_with_fill_admits_all_that_fit_and_then_decodes_them_together():
    driver = drive(
        "PureDecodeFirstScheduler", {"fill": True}, max_num_batched_tokens=200, max_num_seqs=5
    )
    driver.add(*create_requests(6, prompt_tokens=100, output_tokens=5))
    assert phases(driver) == [(2, 0), (2, 0), (1, 0)] + [(0, 5)] * 4 + [(1, 0)] + [(0, 1)] * 4


def test_decode_first_fill_ends_when_the_kv_pool_is_full():
    driver = drive("PureDecodeFirstScheduler", {"fill": True}, num_blocks=8, max_num_seqs=16)
    driver.add(*create_requests(9, prompt_tokens=30, output_tokens=10))
    first, second = phases(driver)[:2]
    assert first == (3, 0)
    assert second == (0, 3)


def test_decode_first_decodes_although_prompts_keep_coming():
    driver = drive("PureDecodeFirstScheduler", max_num_seqs=64)
    driver.add(*create_requests(1, output_tokens=50))
    for number in range(1, 51):
        driver.add(*create_requests(1, first_id=number))
        driver.step()
    assert driver.finished["0"] == "length"


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("StepExclusivePrefillFirstScheduler", {}),
        ("PureDecodeFirstScheduler", {}),
        ("PureDecodeFirstScheduler", {"fill": True}),
    ],
)
def test_a_step_in_which_vllm_throttles_prefills_decodes(name, settings):
    """Data-parallel engines hold prompts back to keep in step: no step may stay empty for that."""
    driver = drive(name, settings, max_num_batched_tokens=64)
    driver.add(*create_requests(4, prompt_tokens=30, output_tokens=12))
    schedule, empty = driver.scheduler.schedule, []
    driver.scheduler.schedule = lambda _: schedule(driver.num_steps % 4 != 0)
    for step in driver.steps():
        if driver.num_steps < 12 and driver.num_steps % 2 == 0:
            driver.add(*create_requests(1, first_id=4 + driver.num_steps, prompt_tokens=30))
        if not step.output.total_num_scheduled_tokens and driver.has_work:
            empty.append(driver.num_steps)
    assert empty == []
    assert len(driver.finished) == len(driver.tokens) > 6


# Fair share


def backlog(cls: str | None, seed: int, **knobs) -> ServiceGap:
    """Client a floods the queue, b and c send as much but later; the law of VTC on watch."""
    rng = random.Random(seed)
    num_blocks, prompt_max = 60, 120
    scheduler = create_scheduler(cls, num_blocks=num_blocks, max_num_seqs=8, **knobs)
    names = "a" * 100 + "b" * 100 + "c" * 100
    bound_tokens = service_gap_bound(1.0, 2.0, prompt_max, (num_blocks - 1) * 16)
    gap = ServiceGap(lambda id_: names[int(id_)], 1.0, 2.0, bound_tokens)
    driver = Driver(scheduler, observers=[gap])
    driver.add(
        *create_requests(
            300,
            prompt_tokens=[rng.randint(5, prompt_max) for _ in names],
            output_tokens=[rng.randint(1, 60) for _ in names],
            extra_args=clients(names),
        )
    )
    driver.run()
    return gap


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "knobs",
    [{}, {"async_scheduling": True}, {"enable_prefix_caching": True}, {"policy": "priority"}],
    ids=["sync", "async", "cache", "priority"],
)
def test_clients_with_a_backlog_stay_within_the_bound_of_the_paper(knobs, seed):
    gap = backlog("my_scheduler.FairShareScheduler", seed, **knobs)
    # The bound lets one client fill the whole pool; what really happens is far from that.
    assert 0 < gap.largest_tokens < 0.2 * gap.bound_tokens


def test_vllm_itself_does_not_keep_that_bound():
    with pytest.raises(InvariantError, match=r"service gap: a and b drifted"):
        backlog(None, 0)


def test_a_client_that_floods_the_queue_does_not_delay_another():
    knobs = {"max_num_seqs": 2, "num_blocks": 64}
    ends = {}
    for cls in ("FairShareScheduler", "PassthroughScheduler"):
        driver = drive(cls, **knobs)
        driver.add(*create_requests(20, extra_args=clients("a" * 20)))
        driver.step()
        driver.add(*create_requests(2, first_id=20, extra_args=clients("bb")))
        driver.run()
        ends[cls] = list(driver.finished).index("20")
    assert ends["FairShareScheduler"] < 5
    assert ends["PassthroughScheduler"] == 20


def test_without_client_names_admission_is_first_come_first_served():
    driver = drive("FairShareScheduler", max_num_seqs=2, num_blocks=40)
    admissions = Admissions()
    driver.observers.append(admissions)
    driver.add(*create_requests(12, prompt_tokens=[50, 9] * 6))
    driver.run()
    assert admissions.ids == [str(number) for number in range(12)]


def test_when_prompts_compete_for_the_budget_the_client_served_least_goes_on_first():
    driver = drive(
        "FairShareScheduler",
        max_num_batched_tokens=64,
        long_prefill_token_threshold=24,
        max_num_seqs=4,
    )
    scheduler = driver.scheduler
    driver.add(*create_requests(3, prompt_tokens=200, extra_args=clients("abc")))
    output = scheduler.schedule()
    assert output.num_scheduled_tokens == {"0": 24, "1": 24, "2": 16}
    scheduler.update_from_output(output, driver.model.execute(scheduler, output))
    scheduler.tokens.charge("client:a", output_tokens=100)
    output = scheduler.schedule()
    assert output.num_scheduled_tokens == {"1": 24, "2": 24, "0": 16}
    # Only this step was in that order: vLLM's own place, and with it its victim, is kept.
    assert [r.request_id for r in scheduler.running] == ["0", "1", "2"]


def test_fairness_is_reported_and_nothing_is_kept_of_requests_that_are_gone():
    driver = drive("FairShareScheduler", max_num_seqs=4)
    scheduler = driver.scheduler
    prompts = [10, 200] * 15
    requests = create_requests(
        30, prompt_tokens=prompts, output_tokens=30, extra_args=clients("ab" * 15)
    )
    driver.add(*requests)
    driver.run()
    assert 500 < scheduler.counters["jain_index_permille"] <= 1000
    assert scheduler.counters["max_service_gap_tokens"] > 0
    driver.add(*create_requests(5, first_id=30))
    driver.abort("31")
    driver.run()
    assert not scheduler._clients
    assert set(scheduler.tokens.served_tokens) == {"client:a", "client:b"}

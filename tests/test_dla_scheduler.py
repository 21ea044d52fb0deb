"""DLA and DLA-SRPT on vLLM's real scheduler without a model."""

import statistics
from collections.abc import Callable
from dataclasses import replace

import pytest
from scheduling import Admissions, Preemptions, drive, predictions, run_with_arrivals

from experiments import sim_dla
from lab3.driver import Driver
from lab3.engine import create_requests, create_scheduler
from lab3.invariants import identity
from lab3.policy.prediction import TrackRecord
from lab3.sim.jobs import simulate

DLA_KNOBS = [
    {"victim": victim, "admission": admission}
    for victim in ("remaining", "remaining_per_context", "least_computed", "upstream")
    for admission in ("off", "reserve", "future_peak")
]


def preempted_by(settings: dict, lengths: list[object], **knobs) -> list[str]:
    """Victims when four requests of 32 tokens outgrow a pool of 12 blocks."""
    driver = drive("DLAScheduler", {"admission": "off"} | settings, num_blocks=13, **knobs)
    preemptions = Preemptions()
    driver.observers.append(preemptions)
    requests = create_requests(
        4, prompt_tokens=32, output_tokens=100, extra_args=predictions(*lengths)
    )
    driver.add(*requests)
    driver.run()
    return preemptions.ids


def test_the_victim_is_who_has_the_most_output_to_come():
    assert preempted_by({}, [40, 99, 60, 50])[0] == "1"


def test_of_equals_the_latest_arrival_goes():
    assert preempted_by({}, [70, 70, 70, 50])[0] == "2"


def test_who_has_no_prediction_counts_with_what_max_tokens_leaves():
    assert preempted_by({}, [90, None, 60, 50])[0] == "1"


def test_who_outlived_its_prediction_is_the_first_to_go():
    assert preempted_by({}, [2, 90, 90, 90])[0] == "0"


@pytest.mark.parametrize("knobs", [{"victim": "upstream"}, {}])
def test_vllm_chooses_when_told_to_or_when_nothing_is_predicted(knobs):
    lengths = [99, 40, 50, 60] if knobs else [None] * 4
    assert preempted_by(knobs, lengths)[0] == "3"


def test_a_request_in_prefill_can_be_the_victim_of_a_decode():
    driver = drive(
        "DLAScheduler",
        {"admission": "off"},
        num_blocks=12,
        max_num_batched_tokens=32,
        reserve_full_isl=False,
    )
    preemptions = Preemptions()
    driver.observers.append(preemptions)
    driver.add(
        *create_requests(2, prompt_tokens=16, output_tokens=60, extra_args=predictions(9, 9))
    )
    driver.step()
    driver.add(
        *create_requests(
            1, first_id=2, prompt_tokens=150, output_tokens=20, extra_args=predictions(20)
        )
    )
    driver.run()
    assert preemptions.ids[0] == "2"


@pytest.mark.parametrize("settings", DLA_KNOBS, ids=lambda s: "-".join(s.values()))
def test_without_predictions_every_step_is_vllms(settings):
    runs = []
    for cls in ("my_scheduler.DLAScheduler", None):
        scheduler = create_scheduler(
            cls, settings=settings if cls else None, num_blocks=20, max_num_seqs=8
        )
        driver = Driver(scheduler)
        driver.add(*create_requests(20, prompt_tokens=[9, 70, 33, 20] * 5, output_tokens=40))
        runs.append([step.output for step in driver.steps()])
    assert len(runs[0]) == len(runs[1])
    for ours, upstream in zip(*runs, strict=True):
        identity(ours, upstream)


def test_under_the_priority_policy_vllm_chooses_the_victim():
    runs = []
    for cls in ("my_scheduler.DLAScheduler", None):
        settings = {"admission": "off"} if cls else None
        scheduler = create_scheduler(
            cls, settings=settings, num_blocks=20, max_num_seqs=8, policy="priority"
        )
        driver = Driver(scheduler)
        driver.add(
            *create_requests(
                20,
                output_tokens=40,
                priority=[0, 2, 1, 2] * 5,
                extra_args=predictions(*[40, 3, 25, 10] * 5),
            )
        )
        runs.append([step.output for step in driver.steps()])
    for ours, upstream in zip(*runs, strict=True):
        identity(ours, upstream)


def running_after(admission: str, lengths: list[object], *, num_blocks: int) -> list[str]:
    """Who runs after one step of requests with 32-token prompts, two blocks each."""
    driver = drive("DLAScheduler", {"admission": admission}, num_blocks=num_blocks)
    driver.add(
        *create_requests(
            len(lengths), prompt_tokens=32, output_tokens=120, extra_args=predictions(*lengths)
        )
    )
    driver.step()
    return [r.request_id for r in driver.scheduler.running]


def test_reserve_admits_whose_prompt_and_prediction_fit_into_free_blocks():
    # 11 usable blocks: 2 for each prompt, and 32 + 100 tokens are 9 blocks.
    assert running_after("off", [100, 100, 100, 100], num_blocks=12) == ["0", "1", "2", "3"]
    assert running_after("reserve", [100, 100, 100, 100], num_blocks=12) == ["0", "1"]
    assert running_after("reserve", [None, 100, 100, 100], num_blocks=12) == ["0", "1"]
    assert running_after("reserve", [100, 16, 16, 16], num_blocks=12) == ["0", "1", "2", "3"]


def test_future_peak_admits_who_is_gone_before_the_others_need_the_room():
    # 176 tokens: 0 alone needs 132, and a second like it 264 at the end.
    assert running_after("future_peak", [100, 100], num_blocks=12) == ["0"]
    assert running_after("future_peak", [100, 8], num_blocks=12) == ["0", "1"]


@pytest.mark.parametrize("admission", ["reserve", "future_peak"])
def test_a_prediction_larger_than_the_pool_cannot_stop_an_idle_engine(admission):
    driver = drive("DLAScheduler", {"admission": admission}, num_blocks=12)
    driver.add(
        *create_requests(
            3, output_tokens=130, prompt_tokens=40, extra_args=predictions(*[9999] * 3)
        )
    )
    driver.run()
    assert len(driver.finished) == 3
    assert driver.scheduler.counters["held_back"] > 0 or admission == "reserve"


@pytest.mark.parametrize(
    "value", [0, -5, float("nan"), float("inf"), "abc", "12", True, [1, 2], {}, 0.5]
)
@pytest.mark.parametrize("name", ["DLAScheduler", "DLASRPTScheduler"])
def test_a_bad_prediction_is_counted_and_otherwise_no_prediction(name, value):
    driver = drive(name, num_blocks=20, max_num_seqs=8)
    driver.add(*create_requests(10, output_tokens=40, extra_args=predictions(*[value] * 10)))
    driver.run()
    assert len(driver.finished) == 10
    counters = driver.scheduler.counters
    assert counters["bad_predictions"] == 10
    assert counters["predictions"] == 0
    assert counters["victims_upstream"] > 0


@pytest.mark.parametrize("value", [2**63, 1e308, 1.5, 3])
def test_odd_numbers_are_predictions(value):
    driver = drive("DLAScheduler", num_blocks=20, max_num_seqs=8)
    driver.add(*create_requests(10, output_tokens=40, extra_args=predictions(*[value] * 10)))
    driver.run()
    counters = driver.scheduler.counters
    assert counters["predictions"] == len(driver.finished) == 10
    driver.scheduler.refresh_counters()
    assert counters["predictions_used_permille"] == 1000
    # Two of the values are below the 40 tokens that came.
    assert counters["overruns"] == (10 if value < 40 else 0)
    assert not driver.scheduler._predicted


def test_predictions_of_aborted_requests_are_forgotten():
    driver = drive("DLAScheduler", max_num_seqs=2)
    driver.add(*create_requests(5, extra_args=predictions(*[9] * 5)))
    driver.step()
    driver.abort("0", "4")
    driver.run()
    assert not driver.scheduler._predicted


def contended(name: str, settings: dict | None = None, wrong: Callable | None = None) -> dict:
    """60 requests with predictions on a pool for a few of them: times, preemptions."""
    driver = drive(name, settings, num_blocks=80, max_num_seqs=16, max_num_batched_tokens=256)
    preemptions = Preemptions()
    driver.observers.append(preemptions)
    outputs = [(7 * number % 13 + 1) * 15 for number in range(60)]
    said = [wrong(length) if wrong else length for length in outputs]
    took_s = run_with_arrivals(
        driver,
        create_requests(60, prompt_tokens=40, output_tokens=outputs, extra_args=predictions(*said)),
        interval_s=0.03,
    )
    assert len(took_s) == 60
    return {"mean_s": statistics.mean(took_s.values()), "preemptions": len(preemptions.ids)}


def test_the_four_combinations_are_a_matter_of_settings_and_admission_saves_preemptions():
    preemptions = {
        (victim, admission): contended("DLAScheduler", {"victim": victim, "admission": admission})[
            "preemptions"
        ]
        for victim in ("upstream", "remaining")
        for admission in ("off", "reserve")
    }
    assert preemptions["upstream", "off"] == contended("PassthroughScheduler")["preemptions"]
    assert preemptions["remaining", "off"] < preemptions["upstream", "off"]
    for victim in ("upstream", "remaining"):
        assert preemptions[victim, "reserve"] < preemptions[victim, "off"] / 2


def mean_jct_s(predictions: str) -> float:
    """120 simulated decode-heavy requests on a scarce pool, which may write up to 2,048 tokens."""
    job = sim_dla.lengths_job("decode-heavy", None, 200)
    job = replace(
        job,
        kv_blocks=sim_dla.scarce_blocks(job),
        request_rate=2.7,
        seed=1,
        scheduler="my_scheduler.DLAScheduler",
        settings={"admission": "future_peak"},
        predictions=predictions,
    )
    done = simulate(job, record_steps=False)
    return statistics.mean(
        times[-1] - queued for times, queued in zip(done.token_times_s, done.queued_s, strict=True)
    )


@pytest.mark.parametrize("corrected", [True, False])
def test_predictions_that_are_all_half_too_long_do_not_leave_the_pool_empty(corrected, monkeypatch):
    if not corrected:
        monkeypatch.setattr(TrackRecord, "used_share", 1.0)
    ratio = mean_jct_s("bias:1.5") / mean_jct_s("oracle")
    assert ratio < 1.15 if corrected else ratio > 1.3


# DLA-SRPT


def test_srpt_beats_dla_and_vllm_where_a_queue_forms():
    srpt, dla = contended("DLASRPTScheduler"), contended("DLAScheduler")
    assert srpt["mean_s"] < 0.9 * dla["mean_s"]
    assert srpt["mean_s"] < 0.9 * contended("PassthroughScheduler")["mean_s"]


@pytest.mark.parametrize(
    "wrong", [lambda n: 1, lambda n: 10 * n, lambda n: 200 - n, lambda n: None]
)
def test_srpt_serves_everybody_whatever_is_predicted(wrong):
    contended("DLASRPTScheduler", wrong=wrong)


def admission_order(settings: dict, **knobs) -> list[str]:
    driver = drive("DLASRPTScheduler", settings, max_num_seqs=1)
    admissions = Admissions()
    driver.observers.append(admissions)
    driver.add(*create_requests(4, output_tokens=60, **knobs))
    driver.run()
    return admissions.ids


def test_srpt_orders_by_prompt_and_predicted_output():
    order = admission_order({}, prompt_tokens=[30, 20, 10, 40], extra_args=predictions(5, 9, 40, 1))
    assert order == ["1", "0", "3", "2"]


def test_srpt_without_predictions_orders_by_prompt():
    assert admission_order({}, prompt_tokens=[30, 20, 10, 40]) == ["2", "1", "0", "3"]


def test_srpt_counts_an_unpredicted_request_with_the_mean_prediction():
    order = admission_order({}, prompt_tokens=10, extra_args=predictions(10, 50, None, 20))
    assert order.index("2") == 2


def test_srpt_resumes_a_preempted_request_before_shorter_ones():
    driver = drive("DLASRPTScheduler", {"admission": "off"}, num_blocks=12, max_num_seqs=2)
    preemptions = Preemptions()
    driver.observers.append(preemptions)
    driver.add(
        *create_requests(2, prompt_tokens=48, output_tokens=80, extra_args=predictions(80, 80))
    )
    while not preemptions.ids:
        driver.step()
    driver.add(*create_requests(3, first_id=2, prompt_tokens=4, output_tokens=4))
    assert next(iter(driver.scheduler.waiting)).request_id == preemptions.ids[0]
    driver.run()
    assert len(driver.finished) == 5


@pytest.mark.parametrize(("aging", "starves"), [(1000.0, False), (0.0, True)])
def test_aging_keeps_a_long_prompt_from_starving(aging, starves):
    driver = drive("DLASRPTScheduler", {"aging_tokens_per_s": aging}, max_num_seqs=1)
    driver.add(*create_requests(1, first_id=0, prompt_tokens=16))
    driver.step()
    driver.add(*create_requests(1, first_id=1, prompt_tokens=500))
    for number in range(2, 302):
        driver.add(*create_requests(1, first_id=number, prompt_tokens=8, arrival_s=driver.now_s))
        driver.step()
    driver.run()
    assert (list(driver.finished).index("1") == 301) is starves

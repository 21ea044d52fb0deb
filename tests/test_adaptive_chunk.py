"""The adaptive token budget, on a machine whose step times are known exactly."""

import statistics

import pytest
from scheduling import drive

from lab3.engine import StubModel, create_requests, create_scheduler


def decode_gaps_ms(name: str, settings: dict | None = None, **knobs) -> list[float]:
    """Gaps between a decode's tokens while 1000-token prompts arrive, warm-up left out."""
    driver = drive(name, settings, num_blocks=4000, max_num_batched_tokens=2048, **knobs)
    driver.add(*create_requests(8, output_tokens=1500))
    last_s, gaps, number = None, [], 8
    while driver.finished.get("0") is None and driver.num_steps < 3000:
        if driver.num_steps % 25 == 0:
            driver.add(*create_requests(1, first_id=number, prompt_tokens=1000, output_tokens=20))
            number += 1
        step = driver.step()
        if step and step.tokens.get("0"):
            if last_s is not None and driver.num_steps > 300:
                gaps.append(1e3 * (driver.now_s - last_s))
            last_s = driver.now_s
    return gaps


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_the_adaptive_budget_keeps_the_itl_target_that_the_default_misses(async_scheduling):
    knobs = {"async_scheduling": async_scheduling}
    gaps = decode_gaps_ms("AdaptiveChunkScheduler", {"itl_target_ms": 20.0}, **knobs)
    assert max(gaps) <= 20.0 * 1.05
    assert max(decode_gaps_ms("PassthroughScheduler", **knobs)) > 40.0
    # It uses what the target allows.
    assert statistics.quantiles(gaps, n=50)[-1] > 18.0


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_the_step_time_is_learned_as_it_is_with_one_and_with_two_batches_in_flight(
    async_scheduling,
):
    driver = drive(
        "AdaptiveChunkScheduler",
        {"itl_target_ms": 20.0},
        num_blocks=2000,
        async_scheduling=async_scheduling,
    )
    for number in range(40):
        driver.add(*create_requests(1, first_id=number, prompt_tokens=400, output_tokens=60))
        for _ in range(10):
            driver.step()
    driver.run()
    assert driver.scheduler.step_time.ms_per_prefill_token == pytest.approx(0.05, rel=0.05)
    assert driver.scheduler.counters["decode_steps"] > 100


def test_prompts_go_on_under_a_target_that_nothing_can_meet():
    driver = drive(
        "AdaptiveChunkScheduler", {"itl_target_ms": 0.001, "min_chunk_tokens": 16}, num_blocks=2000
    )
    driver.add(*create_requests(4, output_tokens=400))
    for _ in range(60):
        driver.step()
    driver.add(*create_requests(1, first_id=4, prompt_tokens=320, output_tokens=1))
    start = driver.num_steps
    while "4" not in driver.finished:
        driver.step()
    assert driver.num_steps - start <= 320 // 16 + 2


def test_whole_prompts_are_admitted_when_they_cannot_be_cut():
    driver = drive(
        "AdaptiveChunkScheduler",
        {"itl_target_ms": 0.001},
        enable_chunked_prefill=False,
        max_num_batched_tokens=512,
        num_blocks=400,
    )
    driver.add(*create_requests(2, output_tokens=300))
    for _ in range(40):
        driver.step()
    driver.add(*create_requests(1, first_id=2, prompt_tokens=500, output_tokens=1))
    for _ in range(12):
        driver.step()
    assert "2" in driver.finished


def test_the_linear_rule_gives_small_chunks_when_the_seats_are_taken():
    chunks = []
    for num_running in (0, 4, 7):
        driver = drive(
            "AdaptiveChunkScheduler",
            {"rule": "linear", "min_chunk_tokens": 32},
            max_num_seqs=8,
            max_num_batched_tokens=1024,
            num_blocks=2000,
        )
        if num_running:
            driver.add(*create_requests(num_running, output_tokens=100))
            driver.step()
        driver.add(*create_requests(1, first_id=99, prompt_tokens=3000))
        chunks.append(driver.scheduler.schedule().num_scheduled_tokens["99"])
    assert chunks[0] == 1024
    assert chunks[0] > chunks[1] > chunks[2] > 32


def test_the_budget_is_back_after_a_step_that_failed(monkeypatch):
    scheduler = create_scheduler("my_scheduler.AdaptiveChunkScheduler")
    for request in create_requests(4):
        scheduler.add_request(request)
    output = scheduler.schedule()
    scheduler.update_from_output(output, StubModel().execute(scheduler, output))
    monkeypatch.setattr(scheduler.kv_cache_manager, "allocate_slots", lambda *a, **k: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        scheduler.schedule()
    assert scheduler.max_num_scheduled_tokens == 2048

"""The step-time model and the way steps are measured."""

import random

import numpy as np
import pytest

from lab3.policy.step_time import StepLoad, StepTimeModel, StepTimer


def _true_ms(load: StepLoad) -> float:
    return (
        4.0 + 0.05 * load.prefill_tokens + 0.1 * load.decode_requests + 2e-5 * load.context_tokens
    )


def _random_load(rng: random.Random) -> StepLoad:
    decodes = rng.randint(0, 100)
    return StepLoad(rng.choice([0, 64, 300, 1000]), decodes, decodes * rng.randint(50, 900))


def _taught(num_steps: int, noise: float = 0.0, seed: int = 0) -> StepTimeModel:
    rng, model = random.Random(seed), StepTimeModel()
    for _ in range(num_steps):
        load = _random_load(rng)
        model.observe(load, _true_ms(load) * rng.lognormvariate(0, noise))
    return model


@pytest.mark.parametrize(("noise", "tolerance"), [(0.0, 0.01), (0.1, 0.15)])
def test_it_learns_a_linear_machine(noise, tolerance):
    model = _taught(500, noise)
    for load in (StepLoad(500, 20, 10_000), StepLoad(0, 80, 40_000), StepLoad(1000, 0, 0)):
        assert model.predict_ms(load) == pytest.approx(_true_ms(load), rel=tolerance)
    assert model.ms_per_prefill_token == pytest.approx(0.05, rel=tolerance)


def test_the_prefill_that_fits_a_target_takes_up_the_target():
    model, decodes = _taught(500), StepLoad(0, 50, 20_000)
    prefill = model.prefill_tokens_within(40.0, decodes)
    load = StepLoad(round(prefill), 50, 20_000)
    assert _true_ms(load) == pytest.approx(40.0, rel=0.02)


def test_no_room_is_negative_and_free_prefill_is_infinite():
    model = _taught(500)
    assert model.prefill_tokens_within(1.0, StepLoad(0, 50, 20_000)) < 0
    free = StepTimeModel()
    for decodes in range(50):
        free.observe(StepLoad(10 * (decodes % 3), decodes, 100 * decodes), 5.0 + decodes)
    assert free.prefill_tokens_within(100.0, StepLoad(0, 5, 500)) > 1000


def test_it_follows_a_machine_that_slows_down():
    model, rng = _taught(300), random.Random(1)
    for _ in range(1500):
        load = _random_load(rng)
        model.observe(load, 3 * _true_ms(load))
    load = StepLoad(300, 30, 10_000)
    assert model.predict_ms(load) == pytest.approx(3 * _true_ms(load), rel=0.1)


def test_one_pause_of_a_minute_does_not_spoil_it():
    model, load = _taught(300), StepLoad(300, 30, 10_000)
    before_ms = model.predict_ms(load)
    model.observe(load, 60_000.0)
    assert model.predict_ms(load) < 1.2 * before_ms


def test_no_load_ever_seems_to_save_time():
    rng, model = random.Random(2), StepTimeModel()
    for _ in range(200):
        load = _random_load(rng)
        model.observe(load, 50.0 - 0.02 * load.prefill_tokens)
    slow, fast = model.predict_ms(StepLoad(0, 10, 1000)), model.predict_ms(StepLoad(900, 10, 1000))
    assert fast >= slow >= 0


def test_it_is_not_ready_before_it_has_seen_enough_and_predicts_nothing_from_nothing():
    assert not StepTimeModel().is_ready
    assert StepTimeModel().predict_ms(StepLoad(10, 1, 1)) == 0
    assert not _taught(19).is_ready
    assert _taught(20).is_ready


def test_equal_steps_only_still_give_a_finite_model():
    model = StepTimeModel()
    for _ in range(50):
        model.observe(StepLoad(0, 8, 800), 10.0)
    assert model.predict_ms(StepLoad(0, 8, 800)) == pytest.approx(10.0, rel=0.01)
    assert np.isfinite(model.predict_ms(StepLoad(512, 8, 800)))


def test_a_step_in_an_idle_engine_is_timed_from_its_call():
    timer, load = StepTimer(), StepLoad(1, 0, 0)
    timer.scheduled(1, load, called_s=10.0)
    assert timer.done(1, now_s=10.5, busy=False) == (load, pytest.approx(500))
    timer.scheduled(2, load, called_s=20.0)
    assert timer.done(2, now_s=20.1, busy=True) == (load, pytest.approx(100))


def test_two_batches_in_flight_are_timed_from_completion_to_completion():
    timer, first, second = StepTimer(), StepLoad(1, 0, 0), StepLoad(2, 0, 0)
    timer.scheduled(1, first, called_s=0.0)
    timer.scheduled(2, second, called_s=0.001)
    assert timer.done(1, now_s=0.100, busy=True) == (first, pytest.approx(100))
    # 0.249 s after its call, but it could only start when the first was done.
    assert timer.done(2, now_s=0.250, busy=True) == (second, pytest.approx(150))


def test_a_busy_engine_counts_the_time_between_steps_too():
    timer, load = StepTimer(), StepLoad(0, 4, 40)
    timer.scheduled(1, load, called_s=0.0)
    timer.done(1, now_s=0.010, busy=True)
    timer.scheduled(2, load, called_s=0.015)
    assert timer.done(2, now_s=0.025, busy=True) == (load, pytest.approx(15))


def test_a_batch_that_never_ends_is_forgotten():
    timer, load = StepTimer(), StepLoad(0, 1, 1)
    timer.scheduled(1, load, called_s=0.0)
    timer.scheduled(2, load, called_s=1.0)
    assert timer.done(2, now_s=1.5, busy=False) == (load, pytest.approx(500))
    assert timer.done(1, now_s=2.0, busy=False) is None

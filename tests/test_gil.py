"""No policy gives up the GIL within schedule(): other threads would get in before the model starts.

The engine process has threads that send answers. A call that lets them in (NumPy's sorts do) makes
a short schedule() last as long as they like, which a profile of CPU time does not show.
"""

import gc
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from fuzz import Policy
from fuzz_policies import POLICIES

from lab3.base_scheduler import LabScheduler
from lab3.driver import Driver
from lab3.engine import create_requests, create_scheduler


class SortsWithNumPy(LabScheduler):
    """Broken on purpose: NumPy sorts without the GIL, whatever the size."""

    def schedule(self, *args, **kwargs):
        for _ in range(10):
            np.argsort(np.array([request.num_tokens for request in self.running]))
        return super().schedule(*args, **kwargs)


@contextmanager
def eager_thread() -> Iterator[list[int]]:
    """A thread that always wants the GIL, which nobody has to offer; how often it got it."""
    turns, stop = [0], threading.Event()

    def run() -> None:
        while not stop.is_set():
            turns[0] += 1
            time.sleep(0)

    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1000.0)
    # A collection may finalize what earlier tests left behind, which is no policy's doing.
    gc.collect()
    gc.disable()
    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield turns
    finally:
        stop.set()
        thread.join()
        gc.enable()
        sys.setswitchinterval(interval_s)


def turns_within_schedule(policy: Policy) -> int:
    """How often the other thread ran within schedule(), over a few hundred crowded steps."""
    scheduler = create_scheduler(
        policy.cls,
        settings=policy.settings,
        num_blocks=80,
        max_num_seqs=16,
        max_num_batched_tokens=256,
    )
    outputs = [(7 * number % 13 + 1) * 15 for number in range(60)]
    extra_args = [{"predicted_length": length, "client": str(length % 4)} for length in outputs]
    driver = Driver(scheduler)
    driver.add(*create_requests(60, prompt_tokens=40, output_tokens=outputs, extra_args=extra_args))
    schedule, lost = scheduler.schedule, 0
    with eager_thread() as turns:

        def counting(*args, **kwargs):
            nonlocal lost
            before = turns[0]
            output = schedule(*args, **kwargs)
            lost += turns[0] - before
            return output

        scheduler.schedule = counting
        driver.run()
    assert driver.num_steps > 300
    return lost


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_schedule_keeps_the_gil(policy):
    assert turns_within_schedule(policy) == 0


def test_a_policy_that_gives_it_up_is_found_out():
    assert turns_within_schedule(Policy("numpy", SortsWithNumPy)) > 0

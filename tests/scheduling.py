"""Drives a class of ``my_scheduler`` without a model and notes what it does; shared by tests."""

from lab3.driver import Driver, Observer, Step
from lab3.engine import create_scheduler
from lab3.invariants import Invariants


def machine(step: Step) -> float:
    """Seconds a batch takes on the machine of these tests: 5 ms and 50 us a token."""
    return 5e-3 + 5e-5 * step.output.total_num_scheduled_tokens


def drive(name: str, settings: dict | None = None, **knobs) -> Driver:
    scheduler = create_scheduler(f"my_scheduler.{name}", settings=settings, **knobs)
    driver = Driver(scheduler, step_time=machine, observers=[Invariants()])
    if hasattr(scheduler, "clock"):
        scheduler.clock = lambda: driver.now_s
    return driver


def clients(names: str) -> list[dict[str, str]]:
    return [{"client": name} for name in names]


def predictions(*lengths: object) -> list[dict[str, object] | None]:
    return [None if length is None else {"predicted_length": length} for length in lengths]


def run_with_arrivals(driver: Driver, requests: list, interval_s: float) -> dict[str, float]:
    """Serve ``requests``, one every ``interval_s``; seconds from arrival to end of each."""
    arrivals = {r.request_id: i * interval_s for i, r in enumerate(requests)}
    for request in requests:
        request.arrival_time = arrivals[request.request_id]
    waiting, took_s = list(requests), {}
    while waiting or driver.has_work:
        if waiting and not driver.has_work:
            driver.now_s = max(driver.now_s, waiting[0].arrival_time)
        while waiting and waiting[0].arrival_time <= driver.now_s:
            driver.add(waiting.pop(0))
        step = driver.step()
        for id_ in step.finished_ids if step else ():
            took_s[id_] = driver.now_s - arrivals[id_]
    return took_s


class Preemptions(Observer):
    """Who was preempted, in order."""

    def __init__(self) -> None:
        self.ids: list[str] = []

    def after_schedule(self, driver: Driver, step: Step) -> None:
        self.ids += step.output.preempted_req_ids or ()


class Admissions(Observer):
    """Who was admitted for the first time, in order."""

    def __init__(self) -> None:
        self.ids: list[str] = []

    def after_schedule(self, driver: Driver, step: Step) -> None:
        self.ids += [r.req_id for r in step.output.scheduled_new_reqs if r.req_id not in self.ids]

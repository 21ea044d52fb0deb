"""Random but reproducible workloads on any scheduler class, every invariant checked at each step.

    PYTHONPATH=. python tests/fuzz.py sjf async+cache abort-storm 17        # run one seed again
    PYTHONPATH=. python tests/fuzz.py sjf all kv-scarce 0-999               # many seeds, every mode

A case is (policy, mode, profile, seed); the same case makes the same steps on any machine.
"""

import itertools
import random
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from vllm.v1.core.sched.interface import PauseState
from vllm.v1.request import Request, RequestStatus

from lab3.driver import Driver, Observer, Step
from lab3.engine import (
    EOS_TOKEN_ID,
    StubModel,
    create_requests,
    create_scheduler,
    grammar_ready,
    token_at,
)
from lab3.invariants import Invariants, fingerprint

BLOCK_SIZE = 4


@dataclass(frozen=True)
class Policy:
    """A scheduler class with settings.

    ``pure``: no step mixes prefill and decode. ``same_as_vllm``: makes the very steps of vLLM's
    own scheduler, "always" or when no request carries a prediction ("unpredicted").
    """

    name: str
    cls: str | type | None
    settings: Mapping[str, Any] = field(default_factory=dict)
    pure: bool = False
    same_as_vllm: Literal["", "always", "unpredicted"] = ""


@dataclass(frozen=True)
class Profile:
    """What the workload looks like; probabilities are per step."""

    pool_blocks: tuple[int, int] = (24, 80)
    p_abort: float = 0.01
    p_abort_in_flight: float = 0.0
    p_pause: float = 0.0
    p_reset: float = 0.0
    predict: str = "oracle"


PROFILES = {
    "standard": Profile(),
    "kv-scarce": Profile(pool_blocks=(12, 24), predict="noisy"),
    "abort-storm": Profile(pool_blocks=(14, 40), p_abort=0.15, p_abort_in_flight=0.15),
    "pause-resume": Profile(pool_blocks=(14, 60), p_pause=0.08, p_reset=0.02),
    "mixed-predictions": Profile(pool_blocks=(14, 60), predict="mixed"),
    "unpredicted": Profile(pool_blocks=(12, 24), p_abort_in_flight=0.02, predict="none"),
}

MODES: dict[str, dict[str, Any]] = {}
for _base, _cache, _prio, _chunk in itertools.product(
    ("sync", "async", "async-v2"), ("", "+cache"), ("", "+priority"), ("", "+whole")
):
    MODES[_base + _cache + _prio + _chunk] = {
        "async_scheduling": _base != "sync",
        "runner_v2": _base == "async-v2",
        "enable_prefix_caching": bool(_cache),
        "policy": "priority" if _prio else "fcfs",
        "enable_chunked_prefill": not _chunk,
    }

ODD_PREDICTIONS = (
    0, -5, "abc", "12", 1.5, 1e308, float("nan"), float("inf"), [1, 2], True, 2**63, None, {},
)  # fmt: skip


class Aborts(Observer):
    """Ends requests as clients that hang up do, before a step or while its batch is out.

    ``kinds`` counts what was hit: "running", "waiting", "skipped" (running, but not in this
    step), "preempted" (just evicted, perhaps with tokens still on their way).
    """

    def __init__(self, rng: random.Random, profile: Profile) -> None:
        self.rng, self.profile = rng, profile
        self.kinds: Counter[str] = Counter()
        self._batch: Collection[str] = ()

    def before_schedule(self, driver: Driver) -> None:
        if self.rng.random() < self.profile.p_abort:
            self._abort_one(driver)

    def after_execute(self, driver: Driver, step: Step) -> None:
        self._batch = step.output.num_scheduled_tokens
        if self.rng.random() < self.profile.p_abort_in_flight:
            self._abort_one(driver)

    def _abort_one(self, driver: Driver) -> None:
        running, waiting = driver.scheduler.running, list(driver.scheduler.waiting)
        targets = {
            "running": running,
            "waiting": waiting,
            "skipped": [r for r in running if r.request_id not in self._batch],
            "preempted": [r for r in waiting if r.status == RequestStatus.PREEMPTED],
        }
        if kinds := [kind for kind, requests in targets.items() if requests]:
            kind = self.rng.choice(kinds)
            self.kinds[kind] += 1
            driver.abort(self.rng.choice(targets[kind]).request_id)


class Case:
    """One workload on one scheduler."""

    def __init__(self, policy: Policy, mode: str, profile: str, seed: int) -> None:
        self.name = f"{policy.name} {mode} {profile} {seed}"
        self.rng = random.Random(f"{mode} {profile} {seed}")
        self.profile = PROFILES[profile]
        knobs = self._random_knobs(MODES[mode])
        self.scheduler = create_scheduler(policy.cls, settings=policy.settings, **knobs)
        self.model = StubModel(true_output_tokens={})
        self.invariants = Invariants(pure=policy.pure)
        self.aborts = Aborts(random.Random(seed), self.profile)
        self.driver = Driver(
            self.scheduler,
            model=self.model,
            step_time=lambda step: 0.002 + 1e-4 * step.output.total_num_scheduled_tokens,
            observers=[self.invariants, self.aborts],
        )
        # A policy that reads a clock must read this one, or no case could be run again.
        if hasattr(self.scheduler, "clock"):
            self.scheduler.clock = lambda: self.driver.now_s
        self.requests: dict[str, Request] = {}
        self.compiling: list[Request] = []
        self.steps: list[dict[str, object]] = []
        self.paused_steps = 0

    def _random_knobs(self, mode: Mapping[str, Any]) -> dict[str, Any]:
        rng = self.rng
        num_blocks = rng.randint(*self.profile.pool_blocks)
        # Every request must fit alone, drafts included; block 0 is not usable.
        max_model_len = min((num_blocks - 2) * BLOCK_SIZE, rng.choice([48, 80, 120]))
        budget = rng.choice([8, 16, 24, 64])
        if not mode["enable_chunked_prefill"]:
            budget = max(budget, max_model_len)
        seats = rng.randint(1, 8)
        self.max_loras = rng.choice([0, 0, 0, 0, 0, 1, 2])
        self.max_model_len = max_model_len
        return dict(mode) | {
            "num_blocks": num_blocks,
            "block_size": BLOCK_SIZE,
            "max_model_len": max_model_len,
            "max_num_seqs": seats,
            "max_num_batched_tokens": budget,
            "max_num_active_seqs": rng.choice([None, None, None, max(1, seats - 2)]),
            "long_prefill_token_threshold": rng.choice([0, 0, 0, 6]),
            "watermark": rng.choice([0.0, 0.0, 0.05, 0.2]),
            "reserve_full_isl": rng.random() < 0.8,
            "num_spec_tokens": rng.choice([0, 0, 0, 2]),
            "max_loras": self.max_loras,
        }

    def run(self, num_steps: int) -> int:
        """``num_steps`` steps with events, then drain; returns the number of engine steps."""
        driver = self.driver
        for _ in range(num_steps):
            self._events()
            self._step()
        driver.pause(PauseState.UNPAUSED)
        for request in self.compiling:
            grammar_ready(request)
        for _ in range(4000):
            if not driver.has_work:
                break
            self._step()
        self.invariants.finish(driver)
        self._check_tokens()
        return driver.num_steps

    def _step(self) -> None:
        step = self.driver.step()
        if step is None:
            self.driver.now_s += 1e-3
        else:
            self.steps.append(fingerprint(step.output))

    def _events(self) -> None:
        rng, driver, profile = self.rng, self.driver, self.profile
        if len(self.scheduler.waiting) < 12 and rng.random() < 0.25:
            self._arrive(rng.choice([1, 1, 2, 5]))
        if rng.random() < profile.p_pause:
            driver.pause(rng.choice(list(PauseState)))
        self.paused_steps += self.scheduler.pause_state != PauseState.UNPAUSED
        if rng.random() < profile.p_reset:
            self.scheduler.reset_prefix_cache(reset_running_requests=True)
        if self.compiling and rng.random() < 0.2:
            grammar_ready(self.compiling.pop())

    def _arrive(self, num_requests: int) -> None:
        rng, room = self.rng, self.max_model_len
        for _ in range(num_requests):
            prompt = rng.randint(1, min(rng.choice([8, 24, 60]), room - 2))
            output = rng.randint(1, min(rng.choice([4, 16, 40]), room - prompt))
            true_output = rng.randint(1, output) if rng.random() < 0.5 else output
            structured = rng.random() < 0.05
            (request,) = create_requests(
                1,
                first_id=len(self.requests),
                prompt_tokens=prompt,
                output_tokens=output,
                priority=rng.randint(0, 2),
                # Never equal: vLLM's priority policy lets twins evict each other for ever.
                arrival_s=self.driver.now_s + 1e-9 * len(self.requests),
                extra_args=self._extra_args(true_output),
                lora_id=rng.randint(0, self.max_loras + 1) if self.max_loras else 0,
                structured=structured,
                ignore_eos=False,
                shared_prefix_tokens=rng.choice([0, 8]),
            )
            self.model.true_output_tokens[request.request_id] = true_output
            self.requests[request.request_id] = request
            if structured:
                self.compiling.append(request)
            self.driver.add(request)

    def _extra_args(self, true_output: int) -> dict[str, Any] | None:
        rng, predict = self.rng, self.profile.predict
        args: dict[str, Any] = {}
        if rng.random() < 0.5:
            args["client"] = rng.choice(["a", "b", "c"])
        if predict == "mixed":
            predict = rng.choice(["none", "oracle", "noisy", "odd"])
        if predict == "oracle":
            args["predicted_length"] = true_output
        elif predict == "noisy":
            args["predicted_length"] = max(1, round(true_output * rng.lognormvariate(0, 0.7)))
        elif predict == "odd":
            args["predicted_length"] = rng.choice(ODD_PREDICTIONS)
        return args or None

    def _check_tokens(self) -> None:
        for id_, tokens in self.driver.tokens.items():
            length = self.model.true_output_tokens[id_]
            expected = [token_at(id_, position) for position in range(length)]
            expected[-1] = EOS_TOKEN_ID
            if self.driver.finished.get(id_) == "abort":
                expected = expected[: len(tokens)]
            assert tokens == expected, f"request {id_}: {tokens} instead of {expected}"


def run_case(policy: Policy, mode: str, profile: str, seed: int, num_steps: int = 100) -> Case:
    """Run one case; an error carries the command that runs this case again."""
    case = Case(policy, mode, profile, seed)
    try:
        case.run(num_steps)
    except Exception as error:
        error.add_note(f"run again: PYTHONPATH=. python tests/fuzz.py {case.name} {num_steps}")
        raise
    return case


def run_cases(policy: Policy, profile: str, min_steps: int, first_seed: int) -> int:
    """Every mode once, then on with new seeds until ``min_steps``; returns the steps made."""
    num_steps = 0
    for number in itertools.count():
        if number >= len(MODES) and num_steps >= min_steps:
            return num_steps
        mode = list(MODES)[number % len(MODES)]
        num_steps += run_case(policy, mode, profile, first_seed + number).driver.num_steps


def _seeds(text: str) -> Iterator[int]:
    first, _, last = text.partition("-")
    return iter(range(int(first), int(last or first) + 1))


def main(policy_name: str, mode: str, profile: str, seeds: str, num_steps: str = "100") -> None:
    from fuzz_policies import POLICIES

    policy = next(p for p in POLICIES if p.name == policy_name)
    for seed in _seeds(seeds):
        for name in MODES if mode == "all" else [mode]:
            case = run_case(policy, name, profile, seed, int(num_steps))
            print(f"{case.name}: {case.driver.num_steps} steps, {len(case.requests)} requests")


if __name__ == "__main__":
    main(*sys.argv[1:])

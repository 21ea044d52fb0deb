"""Seeded fuzz: every policy in every mode under every profile, all invariants at every step.

``FUZZ_STEPS`` is the number of engine steps for each policy (default 20,000 over all profiles);
``FUZZ_SEED`` is the first seed. A failure ends with the command that runs its case again.
"""

import os
from collections import Counter
from functools import cache

import pytest
from fuzz import MODES, PROFILES, Policy, run_case, run_cases
from fuzz_policies import POLICIES
from handout_reference import HandoutPrefillFirst

from lab3.driver import Driver
from lab3.engine import StubModel, create_requests, create_scheduler
from lab3.invariants import InvariantError, identity, same_parts

FUZZ_STEPS = int(os.environ.get("FUZZ_STEPS", "20000"))
FIRST_SEED = int(os.environ.get("FUZZ_SEED", "0"))

by_name = pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
# Those that make vLLM's very steps are held to that below; one of them stands for all here.
OWN_STEPS = [p for p in POLICIES if p.same_as_vllm != "always" or p.name == "passthrough"]


@pytest.mark.parametrize("policy", OWN_STEPS, ids=lambda policy: policy.name)
@pytest.mark.parametrize("profile", PROFILES)
def test_laws_hold(policy, profile):
    min_steps = FUZZ_STEPS // len(PROFILES)
    assert run_cases(policy, profile, min_steps, FIRST_SEED) >= min_steps


def test_profiles_are_what_they_say():
    """A fuzz that never preempts, aborts, pauses or errs in a prediction would prove little."""
    policy = Policy("prefill-first", "my_scheduler.StepExclusivePrefillFirstScheduler", pure=True)
    cases = {
        profile: [run_case(policy, mode, profile, FIRST_SEED) for mode in MODES]
        for profile in PROFILES
    }
    preemptions = {
        profile: sum(r.num_preemptions for case in of_profile for r in case.requests.values())
        for profile, of_profile in cases.items()
    }
    assert min(preemptions.values()) > 0
    assert preemptions["kv-scarce"] > 2 * preemptions["standard"]
    kinds = sum((case.aborts.kinds for case in cases["abort-storm"]), Counter())
    assert min(kinds[k] for k in ("running", "waiting", "skipped", "preempted")) > 0
    paused = sum(case.paused_steps for case in cases["pause-resume"])
    assert paused > 0 == sum(case.paused_steps for case in cases["standard"])


@by_name
@pytest.mark.parametrize("async_scheduling", [False, True], ids=["sync", "async"])
def test_true_output_length_stays_unknown(policy, async_scheduling):
    """Two runs that differ only in when the model stops make the same steps until it does."""
    runs = []
    for true_tokens in (12, 25):
        scheduler = create_scheduler(
            policy.cls,
            settings=policy.settings,
            num_blocks=24,
            max_num_seqs=6,
            async_scheduling=async_scheduling,
        )
        model = StubModel(true_output_tokens={str(i): true_tokens + i for i in range(10)})
        driver = Driver(scheduler, model=model, step_time=lambda step: 0.01)
        scheduler.clock = lambda driver=driver: driver.now_s
        driver.add(
            *create_requests(
                10,
                prompt_tokens=[40 + i for i in range(10)],
                output_tokens=30,
                ignore_eos=False,
                extra_args={"predicted_length": 20},
            )
        )
        runs.append(list(driver.steps()))
    until = next(i for i, step in enumerate(runs[0]) if step.finished_ids)
    assert until > 10
    for short, long_ in zip(runs[0][:until], runs[1][:until], strict=True):
        identity(short.output, long_.output)
    assert len(runs[0]) != len(runs[1])


@cache
def upstream_steps(mode, profile):
    return run_case(Policy("default", None), mode, profile, FIRST_SEED).steps


@pytest.mark.parametrize(
    "policy", [p for p in POLICIES if p.same_as_vllm], ids=lambda policy: policy.name
)
def test_steps_are_vllms_own(policy):
    """Same requests, tokens, blocks, victims and order as vLLM's scheduler, in every mode."""
    profile = "mixed-predictions" if policy.same_as_vllm == "always" else "unpredicted"
    for mode in MODES:
        case = run_case(policy, mode, profile, FIRST_SEED)
        for ours, theirs in zip(case.steps, upstream_steps(mode, profile), strict=True):
            same_parts(ours, theirs)


def test_predictions_do_change_steps():
    """The control of the test above: DLA with predictions differs from vLLM somewhere."""
    dla = next(policy for policy in POLICIES if policy.name == "dla")
    changed = [
        mode
        for mode in MODES
        if run_case(dla, mode, "kv-scarce", FIRST_SEED).steps != upstream_steps(mode, "kv-scarce")
    ]
    assert changed


def test_failure_tells_how_to_run_it_again():
    broken = Policy("handout", HandoutPrefillFirst)
    with pytest.raises((InvariantError, AssertionError)) as failure:
        run_cases(broken, "kv-scarce", 2000, 0)
    (note,) = failure.value.__notes__
    _, _, command = note.partition("tests/fuzz.py ")
    policy, mode, profile, seed, num_steps = command.split()

    with pytest.raises((InvariantError, AssertionError)) as again:
        run_case(broken, mode, profile, int(seed), int(num_steps))
    assert policy == "handout"
    assert str(again.value) == str(failure.value)


def test_same_seed_makes_the_same_steps():
    adaptive = next(policy for policy in POLICIES if policy.name == "adaptive")
    first, second = (run_case(adaptive, "async+cache", "abort-storm", 5).steps for _ in range(2))
    assert first == second

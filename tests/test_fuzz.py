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

from lab3.invariants import InvariantError, same_parts

FUZZ_STEPS = int(os.environ.get("FUZZ_STEPS", "20000"))
FIRST_SEED = int(os.environ.get("FUZZ_SEED", "0"))

by_name = pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)


@by_name
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

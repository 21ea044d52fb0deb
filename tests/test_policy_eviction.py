"""Who is evicted first."""

import pytest

from lab3.policy.eviction import VICTIM_RULES, eviction_score

# (output tokens to come, tokens computed)
NEARLY_DONE, JUST_STARTED, LONG_PROMPT = (3, 400), (400, 100), (500, 3000)


@pytest.mark.parametrize(
    ("rule", "order"),
    [
        ("remaining", [LONG_PROMPT, JUST_STARTED, NEARLY_DONE]),
        ("remaining_per_context", [JUST_STARTED, LONG_PROMPT, NEARLY_DONE]),
        ("least_computed", [JUST_STARTED, NEARLY_DONE, LONG_PROMPT]),
    ],
)
def test_each_rule_has_its_own_first_victim(rule, order):
    requests = [NEARLY_DONE, JUST_STARTED, LONG_PROMPT]
    assert sorted(requests, key=lambda r: -eviction_score(rule, *r)) == order


def test_a_request_without_computed_tokens_has_a_score():
    for rule in VICTIM_RULES:
        if rule != "upstream":
            assert eviction_score(rule, 10, 0) >= 0


def test_vllms_own_choice_has_no_score():
    with pytest.raises(ValueError, match="upstream"):
        eviction_score("upstream", 1, 1)

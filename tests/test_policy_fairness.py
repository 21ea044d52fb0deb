"""Virtual token counters, Jain's index, client names."""

import math

import pytest

from lab3.policy.fairness import (
    MAX_IDLE_CLIENTS,
    VirtualTokens,
    client_name,
    jain_index,
    service_gap_bound,
)


@pytest.mark.parametrize("name", ["alice", 7, 1.5, "团队"])
def test_a_named_client_has_one_account_over_all_its_requests(name):
    args = {"client": name}
    assert client_name(args, "1") == client_name(args, "2") == (f"client:{name}", True)


@pytest.mark.parametrize(
    "args", [None, {}, {"client": ""}, {"client": None}, {"client": [1]}, {"client": True}, "text"]
)
def test_a_request_without_a_usable_name_is_a_client_of_its_own(args):
    assert client_name(args, "1") == ("request:1", False)
    assert client_name(args, "2") != client_name(args, "1")


def test_a_name_cannot_be_mistaken_for_a_request():
    assert client_name({"client": "1"}, "2") != client_name(None, "1")


def test_input_and_output_tokens_are_weighted():
    tokens = VirtualTokens(input_weight=1.0, output_weight=2.0)
    tokens.charge("a", input_tokens=100)
    tokens.charge("a", output_tokens=10)
    assert tokens.count("a") == tokens.served_tokens["a"] == 120
    tokens.charge("a", input_tokens=-100)
    assert tokens.count("a") == 20


def test_a_lift_takes_saved_credit_but_never_a_debt():
    tokens = VirtualTokens(1.0, 1.0)
    tokens.charge("debtor", input_tokens=500)
    tokens.lift("idle", 200)
    tokens.lift("debtor", 200)
    assert tokens.count("idle") == 200
    assert tokens.count("debtor") == 500
    # A lift is no service.
    assert "idle" not in tokens.served_tokens


def test_a_named_client_keeps_its_debt_over_a_pause_and_an_unnamed_one_leaves_no_trace():
    tokens = VirtualTokens(1.0, 1.0)
    for client, remember in (("named", True), ("unnamed", False)):
        tokens.arrive(client)
        tokens.charge(client, input_tokens=50)
        tokens.leave(client, remember)
    assert tokens.count("named") == 50
    assert tokens.count("unnamed") == 0
    assert set(tokens.served_tokens) == {"named"}


def test_made_up_names_do_not_fill_the_memory_and_the_deepest_debts_stay():
    tokens = VirtualTokens(1.0, 1.0)
    tokens.arrive("live")
    tokens.charge("live", input_tokens=1)
    for number in range(3 * MAX_IDLE_CLIENTS):
        client = str(number)
        tokens.arrive(client)
        tokens.charge(client, input_tokens=number + 2)
        tokens.leave(client, remember=True)
    assert len(tokens.served_tokens) <= MAX_IDLE_CLIENTS + 2
    assert tokens.count(str(3 * MAX_IDLE_CLIENTS - 1)) > 0
    assert tokens.count("live") == 1


def test_jain_index_runs_from_one_share_each_to_one_for_all():
    assert jain_index([5, 5, 5, 5]) == 1.0
    assert jain_index([1, 0, 0, 0]) == 0.25
    assert jain_index([]) == jain_index([0, 0]) == 1.0
    assert 0.25 < jain_index([4, 3, 2, 1]) < 1.0


def test_the_gap_bound_is_twice_the_costlier_of_prompt_and_batch():
    assert service_gap_bound(1, 2, longest_prompt_tokens=1000, batch_tokens=300) == 2000
    assert service_gap_bound(1, 2, longest_prompt_tokens=100, batch_tokens=300) == 1200
    assert math.isfinite(service_gap_bound(1, 1, 0, 0))

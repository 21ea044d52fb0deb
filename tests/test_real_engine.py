"""A scheduler decides when a token is computed, never which: the real engine answers alike.

``real_engine.py`` serves the same requests under every scheduler with vLLM's own engine, model
runner and KV cache, on a model of a few kilobytes in float32.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from real_engine import ARMS, ENVIRONMENT, MODES, NUM_REQUESTS, PAIR, REGEX, STRUCTURED

from lab3 import local_model
from lab3.check import scheduler_class

ROOT = Path(__file__).resolve().parent.parent

pytestmark = [pytest.mark.live, pytest.mark.timeout(1800)]
every_mode = pytest.mark.parametrize("mode", MODES)


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, dict[str, Any]]]:
    """mode -> policy -> what the engine said; one process for all of it."""
    folder = tmp_path_factory.mktemp("real-engine")
    model = local_model.build("micro", dtype="float32", models_dir=folder)
    command = [sys.executable, str(ROOT / "tests/real_engine.py"), str(model)]
    env = os.environ | ENVIRONMENT | {"PYTHONPATH": str(ROOT), "VLLM_LOGGING_LEVEL": "ERROR"}
    done = subprocess.run(
        [*command, str(folder / "said.json")], env=env, cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads((folder / "said.json").read_text())


@pytest.mark.parametrize(
    ("mode", "policy"),
    [
        pytest.param(mode, policy, id=f"{mode}-{policy.name}")
        for mode, policies in ARMS.items()
        for policy in policies
    ],
)
def test_every_policy_says_what_vllms_own_scheduler_says(said, mode, policy):
    ours, default = said[mode][policy.name], said[mode]["default"]
    ran = policy.cls and scheduler_class(policy.cls).__name__
    assert ours["class"] == (ran or "Scheduler")
    assert ours["tokens"] == default["tokens"]
    assert ours["kv_usage"] == 0.0


def test_a_broken_scheduler_is_found_out(said):
    """The control: with preempted requests' KV taken for still there the answers differ."""
    assert said["plain"]["broken"]["counts"]["preemptions"] > 0
    assert said["plain"]["broken"]["tokens"] != said["plain"]["default"]["tokens"]


@every_mode
def test_the_workload_preempts_and_cuts_prompts(said, mode):
    """Policies that reserve room may get by without a preemption, vLLM's own may not."""
    counts = {name: answer["counts"] for name, answer in said[mode].items()}
    assert counts["default"]["preemptions"] >= 3
    assert sum(c.get("preemptions", 0) > 0 for c in counts.values()) > len(ARMS[mode]) / 2
    assert min(c["chunks"] for c in counts.values()) > 0


def test_answers_depend_on_the_prompt(said):
    texts = said["plain"]["default"]["texts"]
    assert len({answer[0] for answer in texts}) == NUM_REQUESTS


@every_mode
def test_structured_output_obeys_its_pattern_and_pairs_are_pairs(said, mode):
    texts = said[mode]["default"]["texts"]
    assert all(re.fullmatch(REGEX, text) for (text,) in texts[STRUCTURED::4])
    assert all(len(answer) == (1 if mode == "ngram" else 2) for answer in texts[PAIR::4])


def test_a_cached_prefix_changes_no_token(said):
    assert said["prefix-caching"]["default"]["tokens"] == said["plain"]["default"]["tokens"]


def test_drafts_are_scheduled_and_change_no_token(said):
    assert said["ngram"]["dla"]["counts"]["drafts"] > 100
    ngram, plain = (said[mode]["default"]["tokens"] for mode in ("ngram", "plain"))
    alone = [number for number in range(NUM_REQUESTS) if number % 4 != PAIR]
    assert [ngram[number] for number in alone] == [plain[number] for number in alone]


def test_adapters_take_turns_and_change_the_answers(said):
    assert {answer["counts"]["adapters_at_once"] for answer in said["lora"].values()} == {1}
    lora, plain = (said[mode]["default"]["tokens"] for mode in ("lora", "plain"))
    assert all(ours != theirs for ours, theirs in zip(lora, plain, strict=True))

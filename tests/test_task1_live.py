"""All plans of Task 1 for real, on a model of a few kilobytes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lab3.task1.job import EOS, FIXED, PLANS
from lab3.task1.measures import pass_of

ROOT = Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.live


@pytest.mark.timeout(1200)
def test_every_plan_answers_the_same_prompts_with_the_same_tokens(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "task1_vllm_vs_hf.py"), "--out", str(tmp_path)]
    command += ["--model", "local:micro", "--dtype", "float32", "--num-prompts", "4"]
    command += ["--max-new-tokens", "48"]
    env = os.environ | {"PROFILE": "cpu", "LAB3_DEVICE": "cpu"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    results = {plan: json.loads((tmp_path / f"{plan}.json").read_text()) for plan in PLANS}
    prompt_lens = json.loads((tmp_path / "run.json").read_text())["prompt_lens"]

    fixed = {plan: pass_of(result, FIXED)["outputs"] for plan, result in results.items()}
    assert all(len(o) == 48 for outputs in fixed.values() for o in outputs)
    assert len({tuple(o) for o in fixed["hf-serial"]}) == 4, "the model must tell prompts apart"
    assert all(outputs == fixed["hf-serial"] for outputs in fixed.values())
    eos = [pass_of(results[plan], EOS)["outputs"] for plan in ("hf-static", "vllm")]
    assert eos[0] == eos[1]

    found = pass_of(results["vllm"], FIXED)
    # The last new token of a request is never computed, so it has no place in the cache.
    assert max(prompt_lens) < found["kv"]["peak_tokens"] <= sum(prompt_lens) + 4 * 47
    assert (
        found["kv"]["peak_blocks"] * results["vllm"]["kv_block_size"] >= found["kv"]["peak_tokens"]
    )
    assert 0 < max(found["finish_s"]) <= found["wall_s"] * 1.01
    assert all(p["peak_memory_bytes"] > 2**20 for r in results.values() for p in r["passes"])
    for name in ("table.md", "task1.csv", "task1.png"):
        assert (tmp_path / name).stat().st_size > 0
    assert "NOT COMPLETE" not in done.stdout

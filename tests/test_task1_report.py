"""From result files to rows, sentences, table, CSV and figure; no model, no vLLM."""

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lab3.task1 import analysis
from lab3.task1.job import EOS, FIXED
from lab3.task1.measures import plan_row
from lab3.task1.report import load, report

LENS = [100, 200, 300, 400]
MIB = 2**20


def hf(
    plan: str, mode: str, wall_s: float, groups: list[list[int]], outputs: list[list[int]]
) -> dict:
    steps = [max(len(outputs[i]) for i in rows) for rows in groups]
    ends = {i: wall_s * (k + 1) / len(groups) for k, rows in enumerate(groups) for i in rows}
    return {
        "mode": mode,
        "wall_s": wall_s,
        "outputs": outputs,
        "finish_s": [ends[i] for i in range(len(outputs))],
        "batches": [
            {"rows": rows, "width": max(LENS[i] for i in rows), "steps": n}
            for rows, n in zip(groups, steps, strict=True)
        ],
        "peak_memory_bytes": 500 * MIB,
    }


def vllm(mode: str, wall_s: float, outputs: list[list[int]]) -> dict:
    series = [[0.1, 1000, 40, 4], [0.5, 1400, 47, 4], [0.9, 700, 24, 2]]
    return {
        "mode": mode,
        "wall_s": wall_s,
        "outputs": outputs,
        "finish_s": [wall_s / 2, wall_s / 2, wall_s, wall_s],
        "batches": [],
        "peak_memory_bytes": 900 * MIB,
        "kv": {"peak_tokens": 1400, "peak_blocks": 47, "series": series},
    }


def result(plan: str, passes: list[dict], **more: Any) -> dict:
    head = {"schema": 1, "plan": plan, "setup": "s", "status": "ok", "reason": ""}
    return head | {"load_s": 3.0, "batch": 4, "search_s": 0.0, "tries": [], "passes": passes} | more


FULL = [[i] * 50 for i in range(4)]
SHORT = [[0] * 5, [1] * 10, [2] * 50, [3] * 15]
OTHER = [FULL[0], [1] * 20 + [9] * 30, FULL[2], FULL[3]]


@pytest.fixture
def results() -> dict[str, dict]:
    one_by_one, together = [[0], [1], [2], [3]], [[0, 1, 2, 3]]
    static = [
        hf("hf-static", FIXED, 4.0, together, FULL),
        hf("hf-static", EOS, 4.0, together, SHORT),
    ]
    pool = {"kv_block_size": 32, "kv_pool_tokens": 3200}
    return {
        "hf-serial": result("hf-serial", [hf("hf-serial", FIXED, 10.0, one_by_one, FULL)], batch=1),
        "hf-static": result("hf-static", static),
        "vllm": result("vllm", [vllm(FIXED, 1.0, OTHER), vllm(EOS, 0.5, SHORT)], **pool),
    }


@pytest.fixture
def folder(tmp_path: Path, results: dict[str, dict]) -> Path:
    run = {
        "setup": "s",
        "task": "task1",
        "source": "measured",
        "mode": FIXED,
        "dtype": "bfloat16",
        "device": "cpu",
        "max_new_tokens": 50,
        "prompt_source": "random vocabulary",
        "prompt_lens": LENS,
        "kv_bytes_per_token": MIB,
        "samples": [{"which": "prompt 1", "prompt": "Hi?", "answers": {"vLLM offline": "Ho."}}],
        "hardware": {"cpu": "C", "cores": 2, "ram_gib": 8, "gpu": None},
        "versions": {"vllm": "0.32.0"},
        "profile": {"name": "cpu", "MODEL": "m"},
        "asked": {"num_prompts": 4},
        "started": "2026-11-29T00:00:00",
    }
    (tmp_path / "run.json").write_text(json.dumps(run))
    for plan, content in results.items():
        (tmp_path / f"{plan}.json").write_text(json.dumps(content))
    return tmp_path


def test_row_of_a_static_batch(results: dict[str, dict]) -> None:
    row = plan_row(results["hf-static"], FIXED, LENS)
    assert (row.output_tokens, row.output_tokens_per_s) == (200, 50)
    assert row.padding_share == pytest.approx(1 - 1000 / 1600)
    assert row.idle_row_share == 0
    assert row.kv_peak_tokens == 4 * (400 + 50)
    assert row.kv_waste_share == pytest.approx(1 - 1200 / 1800)
    assert (row.latency_p50_s, row.latency_p99_s) == (4, 4), "all answers come with the last one"


def test_row_of_a_static_batch_with_answers_that_end(results: dict[str, dict]) -> None:
    row = plan_row(results["hf-static"], EOS, LENS)
    assert row.output_tokens == 80
    assert row.idle_row_share == pytest.approx(1 - 80 / 200)
    assert row.kv_waste_share == pytest.approx(1 - 1080 / 1800)


def test_row_of_the_serial_plan(results: dict[str, dict]) -> None:
    row = plan_row(results["hf-serial"], FIXED, LENS)
    assert (row.padding_share, row.kv_waste_share) == (0, 0)
    assert row.kv_peak_tokens == 450, "the longest request decides"
    assert row.latency_p50_s == pytest.approx(6.25)


def test_row_of_vllm(results: dict[str, dict]) -> None:
    row = plan_row(results["vllm"], FIXED, LENS)
    assert (row.kv_peak_tokens, row.kv_held_tokens) == (1400, 47 * 32)
    assert row.kv_waste_share == pytest.approx(1 - 1400 / 1504)
    assert "up to 4 at once" in row.note


def test_row_of_a_plan_that_failed(results: dict[str, dict]) -> None:
    row = plan_row(results["vllm"] | {"status": "failed", "reason": "no room"}, FIXED, LENS)
    assert (row.ok, row.reason) == (False, "no room")


def test_note_says_when_memory_chose_the_batch(results: dict[str, dict]) -> None:
    found = results["hf-static"] | {"tries": [[8, False], [4, True]]}
    assert "largest batch that fits" in plan_row(found, FIXED, LENS).note
    assert "largest" not in plan_row(results["hf-static"], FIXED, LENS).note


def test_the_answers_follow_the_numbers(results: dict[str, dict]) -> None:
    rows = {plan: plan_row(r, FIXED, LENS) for plan, r in results.items()}
    eos = {plan: plan_row(r, EOS, LENS) for plan, r in results.items() if plan != "hf-serial"}
    run = {"kv_bytes_per_token": MIB, "mode": FIXED, "dtype": "bfloat16"}
    text = "\n".join(analysis.answers(results, rows, eos, run))
    assert "10.0 times HF serial (20.0), 4.00 times HF static batch (50.0)" in text
    assert "batching alone is 2.50 times serial (one pass" in text
    assert "1,800 token slots (1,800 MiB); 33.3% of them" in text
    assert "1,504 MiB in blocks for 1,400 MiB of tokens; 6.9%" in text
    assert "would hold 4 of these requests in blocks" in text
    assert "5 to 50 tokens (median 12.5)" in text
    assert "60.0% of its row-steps" in text
    assert "3 of 4 identical; the others part at new token 21" in text
    assert "HF static batch against HF serial: 4 of 4 identical." in text
    assert "bfloat16" in text


def test_nothing_is_said_about_what_was_not_run(results: dict[str, dict]) -> None:
    only = {"hf-serial": results["hf-serial"]}
    rows = {"hf-serial": plan_row(only["hf-serial"], FIXED, LENS)}
    run = {"kv_bytes_per_token": MIB, "mode": FIXED, "dtype": "bfloat16"}
    assert analysis.answers(only, rows, {}, run) == [
        "Idle rows: every answer has the same length here; run with --stop-at-eos."
    ]


def test_report_writes_table_csv_and_figure_and_again_the_same(folder: Path) -> None:
    text, complete = report(folder)
    assert complete
    assert "Task 1: 4 prompts, 50 new tokens each, greedy, bfloat16" in text
    assert "Ho." in text
    rows = list(csv.DictReader((folder / "task1.csv").open()))
    assert [(r["mode"], r["plan"]) for r in rows][:3] == [
        (FIXED, "hf-serial"),
        (FIXED, "hf-static"),
        (FIXED, "vllm"),
    ]
    assert float(rows[2]["kv_peak_bytes"]) == 1400 * MIB
    assert (folder / "task1.png").stat().st_size > 20_000
    first = {p.name: p.read_bytes() for p in folder.iterdir()}
    assert report(folder) == (text, True)
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == first


def test_results_of_other_settings_are_left_out_and_said(folder: Path) -> None:
    old = json.loads((folder / "vllm.json").read_text()) | {"setup": "older"}
    (folder / "vllm.json").write_text(json.dumps(old))
    _, results, left_out = load(folder)
    assert "vllm" not in results
    assert left_out == ["vllm is of an earlier run with other settings: left out"]
    text, complete = report(folder)
    assert not complete
    assert "NOT COMPLETE: vllm" in text


def test_a_failed_plan_keeps_its_row_and_its_reason(folder: Path) -> None:
    failed = json.loads((folder / "hf-static.json").read_text())
    failed |= {"status": "failed", "reason": "not enough memory", "passes": []}
    (folder / "hf-static.json").write_text(json.dumps(failed))
    text, complete = report(folder)
    assert not complete
    assert "HF static batch failed: not enough memory" in text
    assert "failed, see below" in text


def test_all_plans_failed(folder: Path, results: dict[str, dict]) -> None:
    for plan, content in results.items():
        failed = content | {"status": "failed", "reason": "no room", "passes": []}
        (folder / f"{plan}.json").write_text(json.dumps(failed))
    text, complete = report(folder)
    assert not complete
    assert text.count("failed: no room") == 3


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no results of Task 1"):
        report(tmp_path)


def test_the_report_needs_neither_vllm_nor_torch() -> None:
    code = (
        "import sys; sys.modules['vllm'] = sys.modules['torch'] = None;"
        "import lab3.task1.report, lab3.task1.figure, lab3.task1.compare"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

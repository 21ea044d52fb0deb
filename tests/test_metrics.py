"""Metrics against hand-computed values, and against their description in docs/metrics.md."""

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lab3 import metrics

ROOT = Path(__file__).resolve().parent.parent


def test_tpot_divides_the_time_after_the_first_token_by_the_tokens_after_it():
    tpot = metrics.tpot_ms(np.array([100.0, 50.0]), np.array([20.0, 30.0]), np.array([5, 3]))
    assert tpot.tolist() == [20.0, 10.0]


@pytest.mark.parametrize("tokens", [0, 1])
def test_tpot_of_an_answer_without_a_second_token_is_undefined(tokens):
    assert np.isnan(metrics.tpot_ms(np.array([30.0]), np.array([30.0]), np.array([tokens])))


def test_percentiles_interpolate_and_leave_undefined_values_out():
    assert metrics.percentile([1.0, np.nan, 3.0], 50) == 2.0
    assert metrics.percentile([1.0, 2.0, 3.0, 4.0], 25) == 1.75


@pytest.mark.parametrize(
    "metric",
    [
        metrics.mean,
        metrics.largest,
        metrics.max_gap_ms,
        metrics.jain_index,
        lambda values: metrics.percentile(values, 99),
        lambda values: metrics.share_below(values, 1.0),
    ],
)
def test_metrics_of_nothing_are_undefined(metric):
    assert math.isnan(metric([]))
    assert math.isnan(metric([np.nan]))


def test_the_longest_gap_is_the_stall_that_p99_hides():
    gaps = [10.0] * 255 + [23_000.0]
    assert metrics.max_gap_ms(gaps) == 23_000.0
    assert metrics.percentile(gaps, 99) == 10.0


def test_share_below_counts_only_smaller_values():
    assert metrics.share_below([0.1, 0.3, 5.0, 7.0], 0.3) == 0.25


def test_throughput_of_an_empty_window_is_undefined():
    assert metrics.per_second(30, 2.0) == 15.0
    assert math.isnan(metrics.per_second(30, 0.0))


def test_goodput_needs_both_goals_and_judges_one_token_answers_by_ttft():
    ttft = np.array([50.0, 50.0, 150.0, 50.0, np.nan])
    gap = np.array([20.0, 60.0, 20.0, np.nan, np.nan])
    good = metrics.meets_goals(ttft, gap, ttft_goal_ms=100, itl_goal_ms=50)
    assert good.tolist() == [True, False, False, True, False]


def test_recompute_tax_is_a_share_of_all_scheduled_tokens():
    assert metrics.recompute_tax(25, 60, 40) == 0.25
    assert math.isnan(metrics.recompute_tax(0, 0, 0))


def test_mixed_steps_are_a_share_of_the_steps_that_did_work():
    prefill, decode = np.array([10, 0, 10, 0]), np.array([5, 5, 0, 0])
    assert metrics.mixed_step_share(prefill, decode) == pytest.approx(1 / 3)
    assert math.isnan(metrics.mixed_step_share(np.array([0]), np.array([0])))


def test_step_time_excludes_waiting_between_steps():
    times = metrics.step_ms(np.array([0.0, 0.5]), np.array([0.1, 0.6]))
    assert times == pytest.approx([100.0, 100.0])


def test_step_time_under_async_scheduling_starts_where_the_step_before_ends():
    times = metrics.step_ms(np.array([0.0, 0.05, 0.1]), np.array([0.1, 0.2, 0.3]))
    assert times == pytest.approx([100.0, 100.0, 100.0])


def test_jain_index_of_equal_one_sided_and_empty_shares():
    assert metrics.jain_index([3.0, 3.0, 3.0]) == pytest.approx(1.0)
    assert metrics.jain_index([5.0, 0.0, 0.0, 0.0]) == pytest.approx(0.25)
    assert metrics.jain_index([0.0, 0.0]) == 1.0


def test_jain_index_does_not_depend_on_the_unit():
    shares = np.array([1.0, 4.0, 2.5])
    assert metrics.jain_index(shares) == pytest.approx(metrics.jain_index(1000 * shares))


@pytest.mark.parametrize("key", metrics.METRICS)
def test_the_document_gives_each_metric_the_formula_of_the_code(key):
    document = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    metric = metrics.METRICS[key]
    rows = [line for line in document.splitlines() if line.startswith(f"| `{key}` |")]
    assert len(rows) == 1
    for part in (metric.name, metric.unit, metric.better, f"`{metric.formula}`"):
        assert part in rows[0]


@pytest.mark.parametrize(
    ("module", "without"),
    [
        ("lab3.metrics", "pandas"),
        ("lab3.metrics", "vllm"),
        ("lab3.table", "vllm"),
        ("lab3.figures.__main__", "vllm"),
    ],
)
def test_results_can_be_read_without(module, without):
    code = f"import sys; sys.modules[{without!r}] = None; import {module}"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)

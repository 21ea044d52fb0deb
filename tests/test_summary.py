"""Rows of runs and of arms: what goes into medians, and when a difference is noise."""

import json

import numpy as np
import pytest
from factories import bench_result, engine_trace, write_run

from lab3.results import load_run, load_runs
from lab3.summary import (
    Goals,
    Spread,
    missing_repeats,
    run_row,
    runs_table,
    spread,
    summary_table,
    within_noise,
)


def arm_run(root, arm="default", repeat=1, ttft_s=0.1, gap_s=0.01, failed=(), **info):
    n = 20
    bench = bench_result([ttft_s] * n, [[gap_s] * 4] * n, failed=failed)
    folder = root / "task3-cpu" / f"{arm}-r{repeat}"
    return load_run(write_run(folder, bench, arm=arm, label=arm.title(), repeat=repeat, **info))


def test_throughput_is_of_the_kept_requests_over_their_window(tmp_path):
    run = arm_run(tmp_path)
    row = run_row(run)
    # 18 kept requests sent 0.1 s apart; the last takes 0.14 s.
    assert row["window_s"] == pytest.approx(1.7 + 0.14)
    assert row["output_tokens_per_s"] == pytest.approx(18 * 5 / 1.84)
    assert row["total_tokens_per_s"] == pytest.approx(18 * (16 + 5) / 1.84)
    assert row["requests_per_s"] == pytest.approx(18 / 1.84)


def test_the_warmup_is_not_in_the_latencies(tmp_path):
    bench = bench_result([9.0, 9.0] + [0.1] * 18, [[0.01]] * 20)
    row = run_row(load_run(write_run(tmp_path / "a-r1", bench)))
    assert row["ttft_max_ms"] == pytest.approx(100)
    assert row["requests_sent"] == 20
    assert row["requests_kept"] == 18


def test_timeouts_count_over_all_requests_and_failures_are_among_them(tmp_path):
    bench = bench_result([9.0] + [0.1] * 19, [[0.01]] * 20, failed=(7,))
    row = run_row(load_run(write_run(tmp_path / "a-r1", bench, timeout_s=5.0)))
    assert (row["requests_timed_out"], row["requests_failed"]) == (2, 1)
    assert row["timeout_rate"] == pytest.approx(0.1)


def test_engine_numbers_come_from_the_step_record(tmp_path):
    bench, steps = engine_trace(n=60)
    steps[5] |= {"recomputed_tokens": 100, "preemptions": 3}
    info = {"server_metrics": None}
    row = run_row(load_run(write_run(tmp_path / "a-r1", bench, steps, **info)))
    scheduled = sum(step["prefill_tokens"] + step["decode_tokens"] for step in steps)
    assert row["preemptions"] == 3
    assert row["recompute_tax"] == pytest.approx(100 / scheduled)
    assert 0 < row["mixed_step_share"] < 1
    assert row["kv_peak_tokens"] == max(step["kv_blocks"] for step in steps) * 16


def test_what_the_server_says_comes_before_the_step_record(tmp_path):
    bench, steps = engine_trace(n=60)
    server = {"num_preemptions": 7, "kv_usage_peak": 0.5, "kv_tokens_peak": 800}
    row = run_row(load_run(write_run(tmp_path / "a-r1", bench, steps, server_metrics=server)))
    assert (row["preemptions"], row["kv_peak_share"], row["kv_peak_tokens"]) == (7, 0.5, 800)


def test_without_record_and_metrics_engine_numbers_are_unknown_not_zero(tmp_path):
    row = run_row(arm_run(tmp_path, server_metrics={"num_preemptions": None}))
    for name in ("preemptions", "recomputed_tokens", "engine_itl_p50_ms", "step_p99_ms"):
        assert np.isnan(row[name]), name


def test_strategy_a_has_no_mixed_steps(tmp_path):
    bench, steps = engine_trace(n=60, exclusive=True)
    assert run_row(load_run(write_run(tmp_path / "a-r1", bench, steps)))["mixed_step_share"] == 0


def test_goodput_counts_requests_that_meet_both_goals(tmp_path):
    bench = bench_result([0.1] * 10 + [0.3] * 10, [[0.01] * 4] * 15 + [[0.01, 0.2]] * 5)
    run = load_run(write_run(tmp_path / "a-r1", bench))
    row = run_row(run, Goals(ttft_ms=200, itl_ms=50))
    assert row["good_share"] == pytest.approx(8 / 18)
    assert row["goodput_requests_per_s"] == pytest.approx(8 / row["window_s"])
    assert "good_share" not in run_row(run)


def test_failed_requests_are_not_good(tmp_path):
    bench = bench_result([0.1] * 20, [[0.01]] * 20, failed=(10, 11))
    row = run_row(load_run(write_run(tmp_path / "a-r1", bench)), Goals(200, 50))
    assert row["good_share"] == pytest.approx(16 / 18)


def test_rows_start_with_the_default_and_passthrough(tmp_path):
    for arm in ("sjf", "passthrough", "adaptive", "default"):
        for repeat in (2, 1):
            arm_run(tmp_path, arm, repeat)
    rows = runs_table(load_runs(tmp_path)[0])
    assert list(dict.fromkeys(rows.arm)) == ["default", "passthrough", "adaptive", "sjf"]
    assert rows["repeat"].tolist() == [1, 2] * 4


def test_the_summary_holds_median_and_range_over_repeats(tmp_path):
    runs = [arm_run(tmp_path, repeat=i, ttft_s=t) for i, t in ((1, 0.3), (2, 0.1), (3, 0.2))]
    summary = summary_table(runs_table(runs))
    assert len(summary) == 1
    assert summary.repeats[0] == 3
    found = spread(summary.iloc[0], "ttft_p50_ms")
    assert (found.median, found.low, found.high, found.n) == pytest.approx((200, 100, 300, 3))


def test_points_of_one_arm_are_rows_of_their_own(tmp_path):
    runs = [
        arm_run(tmp_path, repeat=x, point={"max_num_batched_tokens": x}) for x in (2048, 64, 512)
    ]
    summary = summary_table(runs_table(runs))
    assert [json.loads(p)["max_num_batched_tokens"] for p in summary.point] == [64, 512, 2048]


def test_repeats_with_failures_are_left_out_where_there_are_clean_ones(tmp_path):
    runs = [arm_run(tmp_path, repeat=1), arm_run(tmp_path, repeat=2, ttft_s=0.01, failed=(3,))]
    row = summary_table(runs_table(runs)).iloc[0]
    assert (row.valid, row.repeats, row.repeats_left_out) == (True, 1, 1)
    assert row.ttft_p50_ms == pytest.approx(100)


def test_an_arm_without_a_clean_repeat_keeps_its_numbers_and_is_marked(tmp_path):
    row = summary_table(runs_table([arm_run(tmp_path, failed=(3,))])).iloc[0]
    assert (row.valid, row.repeats) == (False, 1)
    assert row.requests_failed == 1


@pytest.mark.parametrize(
    ("a", "b", "noise"),
    [
        (Spread(100, 98, 102, 3), Spread(110, 108, 111, 3), False),
        (Spread(100, 95, 106, 3), Spread(110, 108, 111, 3), True),
        (Spread(100, 98, 102, 3), Spread(110, 100, 111, 3), True),
        (Spread(100, 100, 100, 1), Spread(500, 499, 501, 3), True),
        (Spread(100, 100, 100, 2), Spread(100, 100, 100, 2), True),
    ],
)
def test_a_difference_within_the_spread_of_either_arm_is_noise(a, b, noise):
    assert within_noise(a, b) is noise
    assert within_noise(b, a) is noise


def test_arms_with_too_few_usable_repeats_are_named(tmp_path):
    arm_run(tmp_path, "default", 1)
    arm_run(tmp_path, "default", 2)
    arm_run(tmp_path, "sjf", 1)
    write_run(tmp_path / "task3-cpu" / "sjf-r2", "", arm="sjf", label="Sjf", repeat=2)
    write_run(tmp_path / "task3-cpu" / "a-r1", "", arm="a", label="A")
    runs, failed = load_runs(tmp_path)
    assert missing_repeats(runs, failed) == [
        "Sjf: 1 of 2 repeats usable",
        "A: 0 of 2 repeats usable",
    ]
    assert len(missing_repeats(runs, failed, wanted=3)) == 3

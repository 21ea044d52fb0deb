"""What is said about a sweep: direction, noise, saturation, recommendation."""

import pytest
from factories import bench_result, engine_trace, write_run

from lab3.results import load_run
from lab3.summary import Goals, Spread, runs_table, summary_table
from lab3.sweep import (
    Trend,
    direction_verdict,
    findings,
    knob_lines,
    latency_trends,
    recommendation,
    saturation_lines,
    saturation_x,
    sweep_values,
)

BUDGETS = (64, 256, 2048)


def trend(name, first, last, width=0.0):
    spreads = [Spread(v, v - width / 2, v + width / 2, 3) for v in (first, last)]
    return Trend(name, (64, 2048), *spreads, lowest_at=64)


def sweep_rows(tmp_path, make, budgets=BUDGETS, repeats=2, goals=None, rate=20.0):
    """Summary of a sweep; `make(x, repeat)` gives (ttft_s, gap_s, seconds between sends)."""
    runs = []
    for x in budgets:
        for repeat in range(1, repeats + 1):
            ttft_s, gap_s, every_s = make(x, repeat)
            starts = [1000 + every_s * i for i in range(20)]
            bench = bench_result([ttft_s] * 20, [[gap_s] * 4] * 20, start_times=starts)
            point = {"max_num_batched_tokens": x, "request_rate": rate}
            folder = tmp_path / "task2-cpu" / f"x{x}-r{repeat}"
            info = {"arm": "sweep", "task": "task2", "point": point, "repeat": repeat}
            runs.append(load_run(write_run(folder, bench, **info)))
    return sweep_values(summary_table(runs_table(runs, goals)))


def labs_shape(x, repeat):
    """Larger X: lower TTFT, worse ITL, more throughput up to 256."""
    noise = 1 + 0.01 * repeat
    every_s = 0.1 if x == 64 else 0.05
    return noise * 10 / x, noise * 0.001 * x**0.5, every_s


@pytest.mark.parametrize(
    ("first", "last", "width", "direction"),
    [
        (100, 50, 10, "falls"),
        (50, 100, 10, "rises"),
        (100, 104, 1, "flat"),
        (100, 120, 30, "noise"),
        (float("nan"), float("nan"), 0, "unknown"),
    ],
)
def test_a_trend_counts_only_beyond_flat_and_noise(first, last, width, direction):
    assert trend("TTFT P50", first, last, width).direction == direction


def test_the_rule_holds_when_all_percentiles_move_as_it_says():
    trends = [trend("TTFT P50", 9, 5), trend("TTFT P99", 9, 5)]
    trends += [trend("ITL P50", 5, 9), trend("ITL P99", 5, 9)]
    verdict = direction_verdict(trends)
    assert '"lower TTFT" holds;' in verdict
    assert verdict.endswith('"worse ITL" holds.')


def test_the_rule_can_hold_for_one_percentile_only():
    trends = [trend("TTFT P50", 9, 5), trend("TTFT P99", 9, 8, width=4)]
    trends += [trend("ITL P50", 9, 5), trend("ITL P99", 5, 9)]
    verdict = direction_verdict(trends)
    assert '"lower TTFT" holds for P50 only (P99 is within noise)' in verdict
    assert '"worse ITL" holds for P99 only (P50 falls)' in verdict


def test_the_rule_fails_or_is_not_shown():
    trends = [trend("TTFT P50", 5, 9), trend("TTFT P99", 5, 9)]
    trends += [trend("ITL P50", 5, 5), trend("ITL P99", 5, 6, width=4)]
    verdict = direction_verdict(trends)
    assert '"lower TTFT" does not hold (P50 rises, P99 rises)' in verdict
    assert '"worse ITL" is not shown (P50 is flat, P99 is within noise)' in verdict


def test_trends_come_from_the_smallest_and_the_largest_x(tmp_path):
    trends = latency_trends(sweep_rows(tmp_path, labs_shape))
    assert [t.direction for t in trends] == ["falls", "falls", "rises", "rises"]
    assert [t.lowest_at for t in trends] == [2048, 2048, 64, 64]
    assert trends[0].x == (64, 2048)


def test_a_flat_sweep_names_the_rate_and_a_noisy_one_the_repeats(tmp_path):
    rows = sweep_rows(tmp_path, lambda x, r: (0.1, 0.01 * r, 0.05))
    lines = knob_lines(latency_trends(rows), rows, {"TASK2_REQUEST_RATE": "16"})
    assert len(lines) == 1
    assert "TASK2_REQUEST_RATE" in lines[0]
    assert "KV pool" not in lines[0]
    trends = [trend("TTFT P50", 5, 6, width=4)]
    assert "raise REPEATS" in knob_lines(trends, rows, {})[0]


def test_preemptions_point_to_the_kv_pool(tmp_path):
    rows = sweep_rows(tmp_path, lambda x, r: (0.1, 0.01, 0.05)).assign(preemptions=12.0)
    assert "KV pool, up to 12 preemptions" in knob_lines(latency_trends(rows), rows, {})[0]


def test_a_clear_sweep_names_no_knob(tmp_path):
    rows = sweep_rows(tmp_path, labs_shape)
    assert knob_lines(latency_trends(rows), rows, {}) == []


def test_saturation_is_the_smallest_x_near_the_best_throughput(tmp_path):
    rows = sweep_rows(tmp_path, labs_shape, rate=100.0)
    assert saturation_x(rows) == 256
    lines = saturation_lines(rows)
    assert "saturates at X=256" in lines[0]
    assert len(lines) == 1


def test_throughput_that_still_rises_at_the_largest_x_does_not_saturate(tmp_path):
    rows = sweep_rows(tmp_path, lambda x, r: (0.1, 0.01, 12.8 / x), rate=1000.0)
    assert saturation_lines(rows)[0].startswith(
        "Throughput never drops beyond noise as X grows; it still rises at the largest X=2048 ("
    )


def test_a_drop_of_throughput_is_told(tmp_path):
    rows = sweep_rows(tmp_path, lambda x, r: (0.1, 0.01, 0.2 if x == 2048 else 0.05), rate=100.0)
    assert "Throughput drops from X=256 to 2048" in saturation_lines(rows)[0]
    less = rows.output_tokens_per_s.where(rows.x != 2048, 0.99 * rows.output_tokens_per_s.max())
    assert "never drops" in saturation_lines(rows.assign(output_tokens_per_s=less))[0]


def test_a_load_that_every_x_keeps_up_with_is_told(tmp_path):
    rows = sweep_rows(tmp_path, lambda x, r: (0.01, 0.001, 0.05), rate=20.0)
    assert "Every X keeps up with the 20 requests/s" in saturation_lines(rows)[1]
    rows = sweep_rows(tmp_path, lambda x, r: (0.01, 0.001, 0.05), rate="inf")
    assert len(saturation_lines(rows)) == 1


def test_the_recommendation_is_the_x_with_the_most_goodput(tmp_path):
    goals = Goals(ttft_ms=100, itl_ms=30)
    rows = sweep_rows(tmp_path, labs_shape, goals=goals)
    line = recommendation(rows, goals)
    assert "take X=256" in line
    assert "TTFT <= 100 ms" in line


def test_among_equal_goodput_the_smoothest_x_is_taken(tmp_path):
    goals = Goals(ttft_ms=1000, itl_ms=1000)
    rows = sweep_rows(tmp_path, lambda x, r: (0.1, 0.001 * x**0.5, 0.05), goals=goals)
    rows["goodput_requests_per_s"] = rows["goodput_requests_per_s_min"] = 7.0
    rows["goodput_requests_per_s_max"] = 7.0
    assert "take X=64" in recommendation(rows, goals)


def test_goals_that_no_x_meets_are_told(tmp_path):
    goals = Goals(ttft_ms=1, itl_ms=1)
    line = recommendation(sweep_rows(tmp_path, labs_shape, goals=goals), goals)
    assert line.startswith("No X meets")
    assert "X=64" in line


def test_without_goals_there_is_no_recommendation(tmp_path):
    rows = sweep_rows(tmp_path, labs_shape)
    assert "set ITL_SLO_MS and TTFT_SLO_MS" in recommendation(rows, None)


def test_one_x_is_nothing_to_compare(tmp_path):
    summary = sweep_rows(tmp_path, labs_shape, budgets=(64,)).drop(columns="x")
    assert findings(summary, None, {})[0].startswith("One X only")


def test_a_sweep_of_one_token_answers_has_no_itl_and_still_a_verdict(tmp_path):
    runs = []
    for x in BUDGETS:
        bench = bench_result([0.1] * 5, [[]] * 5)
        point = {"max_num_batched_tokens": x}
        runs.append(load_run(write_run(tmp_path / f"x{x}-r1", bench, point=point)))
    lines = findings(summary_table(runs_table(runs, Goals(200, 50))), Goals(200, 50), {})
    assert any("P99 is unknown" in line for line in lines)


def test_findings_of_a_small_engine_have_the_labs_shape(tmp_path):
    runs = []
    for x in (64, 512):
        for repeat in (1, 2):
            bench, steps = engine_trace(n=100, budget=x, rate=18, speed=1 + 0.01 * repeat)
            point = {"max_num_batched_tokens": x, "request_rate": 18}
            folder = tmp_path / f"x{x}-r{repeat}"
            info = {"point": point, "repeat": repeat}
            runs.append(load_run(write_run(folder, bench, steps, **info)))
    text = "\n".join(findings(summary_table(runs_table(runs)), None, {}))
    assert '"lower TTFT" holds;' in text
    assert '"worse ITL" holds for P99 only' in text

"""Bench files as vLLM writes them, whole and broken: what is read, what is refused."""

import json

import numpy as np
import pytest
from factories import bench_result

from lab3.bench_file import ResultError, first_error, read_bench, requests_frame


def write(tmp_path, content, name="bench.json"):
    path = tmp_path / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


# Files


def test_a_whole_file_is_one_result(tmp_path):
    bench = bench_result([0.1], [[0.01]])
    assert read_bench(write(tmp_path, bench)) == [bench]


def test_an_indented_file_is_one_result(tmp_path):
    bench = bench_result([0.1], [[0.01]])
    assert read_bench(write(tmp_path, json.dumps(bench, indent=2))) == [bench]


def test_appended_results_are_all_read(tmp_path):
    first, second = bench_result([0.1], [[0.01]]), bench_result([0.2], [[0.02]])
    text = json.dumps(first) + "\n" + json.dumps(second)
    assert read_bench(write(tmp_path, text)) == [first, second]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ("  \n", "is empty"),
        (json.dumps(bench_result([0.1], [[0.01]]))[:-20], "is cut"),
        (json.dumps(bench_result([0.1], [[0.01]])) + '\n{"ttfts": [', "is cut"),
        ("[1, 2]", "does not hold JSON objects"),
        ("{}", "--save-detailed"),
    ],
)
def test_a_broken_file_is_refused_in_one_line(tmp_path, content, message):
    with pytest.raises(ResultError, match=message) as error:
        read_bench(write(tmp_path, content))
    assert "\n" not in str(error.value)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ResultError, match=r"no bench\.json"):
        read_bench(tmp_path / "bench.json")


def test_pytorch_summaries_are_refused_by_name(tmp_path):
    path = write(tmp_path, bench_result([0.1], [[0.01]]), "bench.pytorch.json")
    with pytest.raises(ResultError, match="PyTorch"):
        read_bench(path)


def test_a_file_without_detailed_arrays_names_what_is_missing(tmp_path):
    bench = bench_result([0.1], [[0.01]])
    del bench["itls"], bench["errors"]
    with pytest.raises(ResultError, match=r"itls, errors.*--save-detailed"):
        read_bench(write(tmp_path, bench))


def test_arrays_of_different_lengths_are_refused(tmp_path):
    bench = bench_result([0.1, 0.2], [[0.01], [0.01]])
    bench["ttfts"].append(0.3)
    with pytest.raises(ResultError, match="different lengths"):
        read_bench(write(tmp_path, bench))


# Requests


def test_times_become_milliseconds_and_tpot_follows_from_them():
    requests, gaps = requests_frame(bench_result([0.1], [[0.01, 0.03]]))
    row = requests.iloc[0]
    assert (row.ttft_ms, row.e2e_ms, row.tpot_ms) == pytest.approx((100, 140, 20))
    assert row.max_gap_ms == pytest.approx(30)
    assert gaps[0] == pytest.approx([10, 30])


def test_failed_requests_stay_as_rows_without_times():
    bench = bench_result(
        [0.1, 0.0, 0.2, 0.3],
        [[0.01] * 4, [], [0.01] * 4, [0.01] * 3],
        errors=["", "ConnectionError: gone", "", "Server disconnected"],
    )
    requests, gaps = requests_frame(bench)
    assert requests.ok.tolist() == [True, False, True, False]
    failed = requests[~requests.ok]
    assert failed[["ttft_ms", "e2e_ms", "tpot_ms", "max_gap_ms"]].isna().all(axis=None)
    assert len(gaps[3]) == 0, "gaps of a half answer must not count"
    assert requests.ttft_ms.mean() == pytest.approx(150)


def test_a_failure_with_an_empty_error_text_is_a_failure():
    requests, _ = requests_frame(bench_result([0.1, 0.2], [[0.01], [0.01]], failed=(1,)))
    assert requests.error.tolist() == ["", ""]
    assert requests.ok.tolist() == [True, False]


def test_a_file_without_latencies_gets_them_from_ttft_and_gaps():
    bench = bench_result([0.1, 0.0], [[0.01, 0.03], []], errors=["", "gone"])
    del bench["latencies"]
    requests, _ = requests_frame(bench)
    assert requests.e2e_ms[0] == pytest.approx(140)
    assert requests.ok.tolist() == [True, False]


def test_one_token_answers_have_no_tpot_and_no_gaps():
    requests, _ = requests_frame(bench_result([0.1], [[]]))
    assert requests.ok.all()
    assert requests[["tpot_ms", "max_gap_ms"]].isna().all(axis=None)


def test_tpot_counts_tokens_where_chunks_carry_several():
    bench = bench_result([0.1], [[0.04] * 8], output_lens=[33])
    requests, gaps = requests_frame(bench)
    assert requests.tpot_ms[0] == pytest.approx(10)
    assert len(gaps[0]) == 8


def test_timed_out_are_slow_successes_and_requests_that_never_finished():
    bench = bench_result([0.1, 9.0, 0.1], [[0.1], [3.0], [0.1]], errors=["", "", "gone"])
    requests, _ = requests_frame(bench, timeout_s=10)
    assert requests.timed_out.tolist() == [False, True, True]
    assert requests.e2e_ms[1] == pytest.approx(12_000), "a slow success stays in the data"


def test_without_a_timeout_only_failures_count_as_timed_out():
    requests, _ = requests_frame(bench_result([99.0, 0.1], [[99.0], []], failed=(1,)))
    assert requests.timed_out.tolist() == [False, True]


def test_warmup_is_the_first_tenth_by_send_time_not_by_place():
    n = 20
    starts = [1000.0 + i for i in range(n)]
    starts[0], starts[1], starts[15] = 1015.0, 1000.5, 1000.0
    bench = bench_result([0.1] * n, [[0.01]] * n, start_times=starts)
    requests, _ = requests_frame(bench)
    assert requests.index[~requests.in_window].tolist() == [1, 15]


@pytest.mark.parametrize(("n", "dropped"), [(5, 0), (10, 1), (19, 1), (1000, 100)])
def test_warmup_drops_a_tenth_rounded_down(n, dropped):
    requests, _ = requests_frame(bench_result([0.1] * n, [[0.01]] * n))
    assert (~requests.in_window).sum() == dropped


def test_waiting_for_the_clients_semaphore_is_added_under_max_concurrency():
    bench = bench_result([0.1], [[0.02]], max_concurrency=4, queue_times=[0.5])
    row = requests_frame(bench)[0].iloc[0]
    assert (row.ttft_ms, row.e2e_ms, row.queue_ms) == pytest.approx((600, 620, 500))
    assert row.start_s == pytest.approx(bench["start_times"][0] - 0.5)
    assert row.tpot_ms == pytest.approx(20)


def test_queue_times_without_max_concurrency_are_scheduling_noise_and_ignored():
    bench = bench_result([0.1], [[0.02]], queue_times=[0.5])
    assert requests_frame(bench)[0].ttft_ms[0] == pytest.approx(100)


def test_an_infinite_request_rate_is_text_in_the_file(tmp_path):
    bench = bench_result([0.1], [[0.02]], request_rate="inf")
    requests, _ = requests_frame(read_bench(write(tmp_path, bench))[0])
    assert requests.ok.all()


def test_the_first_error_text_is_its_last_line_or_says_that_there_is_none():
    trace = "Traceback ...\n  File x\naiohttp.ClientOSError: gone\n"
    requests, _ = requests_frame(
        bench_result([0.0, 0.0], [[], []], errors=["", trace], failed=(0,))
    )
    assert first_error(requests) == "aiohttp.ClientOSError: gone"
    requests, _ = requests_frame(bench_result([0.0], [[]], failed=(0,)))
    assert first_error(requests) == "no error text"


def test_no_value_is_undefined_for_a_success():
    rng = np.random.default_rng(0)
    itls = [list(rng.uniform(0.001, 0.1, 7)) for _ in range(30)]
    requests, _ = requests_frame(bench_result(list(rng.uniform(0.1, 1, 30)), itls))
    assert not requests.isna().any(axis=None)

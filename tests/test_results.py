"""Run folders: what is read, what is refused, and that vLLM's own numbers come out."""

import json

import numpy as np
import pytest
from factories import bench_result, engine_trace, write_run

from lab3.bench_file import ResultError
from lab3.results import check_against_vllm, find_run_folders, load_run, load_runs


@pytest.fixture(scope="module")
def trace():
    return engine_trace(n=60)


@pytest.fixture
def run(tmp_path, trace):
    bench, steps = trace
    return load_run(write_run(tmp_path / "task3-cpu" / "sjf-r1", bench, steps, arm="sjf"))


# A clean run


def test_a_clean_run_has_no_problems(run):
    assert run.valid
    assert run.notes == ()
    assert run.itl_unit == "token"
    assert (run.info.task, run.info.arm, run.info.repeat) == ("task3", "sjf", 1)


def test_the_window_goes_from_the_first_kept_send_to_the_last_kept_answer(run):
    kept = run.requests[run.requests.in_window]
    assert len(kept) == 54
    assert run.window_s[0] == kept.start_s.min() > run.requests.start_s.min()
    assert run.window_s[1] == (kept.start_s + kept.e2e_ms / 1000).max()


def test_steps_of_the_warmup_are_kept_but_lie_outside_the_window(run):
    before = run.steps[~run.steps.in_window]
    assert len(before) > 0
    assert (before.t_s < run.window_s[0]).all()
    inside = run.steps[run.steps.in_window]
    assert inside.t_s.between(*run.window_s).all()


def test_steps_before_the_first_request_are_left_out(tmp_path, trace):
    bench, steps = trace
    warm = dict(steps[0], t_s=steps[0]["t_s"] - 5, done_s=steps[0]["done_s"] - 5)
    run = load_run(write_run(tmp_path / "a-r1", bench, [warm, *steps]))
    assert len(run.steps) == len(steps)


def test_the_engines_itl_is_that_of_the_steps_in_the_window(run, trace):
    _, steps = trace
    inside = [s for s in steps if run.window_s[0] <= s["t_s"] <= run.window_s[1]]
    expected = sum(count for step in inside for _, count in step["itl_ms"])
    assert len(run.engine_itl_ms) == expected
    assert abs(np.median(run.engine_itl_ms) - np.median(run.kept_gaps_ms)) < 1


def test_a_run_without_a_record_has_no_steps(tmp_path, trace):
    run = load_run(write_run(tmp_path / "default-r1", trace[0]))
    assert run.steps is None
    assert run.engine_itl_ms.size == run.engine_ttft_ms.size == 0


def test_a_record_from_another_clock_is_not_used(tmp_path, trace):
    bench, steps = trace
    shifted = [dict(s, t_s=s["t_s"] + 1e6, done_s=s["done_s"] + 1e6) for s in steps]
    run = load_run(write_run(tmp_path / "a-r1", bench, shifted))
    assert run.steps is None
    assert "no recorded step" in run.notes[0]


def test_engines_of_a_data_parallel_server_have_a_record_each(tmp_path, trace):
    bench, steps = trace
    folder = write_run(tmp_path / "a-r1", bench, [dict(steps[0], counters={"victims": 2}), *steps])
    other = [dict(steps[0], counters={"victims": 3}), *steps[1:]]
    (folder / "steps.dp1.jsonl").write_text("\n".join(map(json.dumps, other)))
    run = load_run(folder)
    assert run.steps.engine.value_counts().to_dict() == {0: len(steps) + 1, 1: len(steps)}
    assert run.counters == {"victims": 5}


def test_reading_twice_gives_the_same(tmp_path, trace):
    folder = write_run(tmp_path / "a-r1", *trace)
    first, second = load_run(folder), load_run(folder)
    assert first.requests.equals(second.requests)
    assert first.window_s == second.window_s


# vLLM's own numbers


def vllm_result(seed: int) -> dict:
    """A result computed and laid out by vLLM's own code, from random requests with failures."""
    from vllm.benchmarks import serve
    from vllm.benchmarks.lib.endpoint_request_func import RequestFuncOutput

    rng = np.random.default_rng(seed)
    outputs = []
    for i in range(80):
        tokens = int(rng.integers(1, 40))
        itl = list(rng.lognormal(-4, 1, tokens - 1))
        output = RequestFuncOutput(
            success=True,
            ttft=float(rng.lognormal(-2, 1)),
            itl=itl,
            output_tokens=tokens,
            prompt_len=int(rng.integers(1, 500)),
            start_time=1000.0 + i / 10,
        )
        output.latency = output.ttft + sum(itl)
        if i % 11 == 5:  # lost in mid-answer: partial data stays, no latency
            output.success, output.error, output.latency = False, "Server disconnected", 0.0
        if i % 17 == 3:  # refused with an empty reason
            output = RequestFuncOutput(start_time=output.start_time, prompt_len=output.prompt_len)
        outputs.append(output)
    metrics, lens = serve.calculate_metrics([], outputs, 12.5, None, [50.0, 90.0, 99.0], {})
    result = {
        "duration": 12.5,
        "completed": metrics.completed,
        "failed": metrics.failed,
        "total_input_tokens": metrics.total_input,
        "total_output_tokens": metrics.total_output,
        "request_throughput": metrics.request_throughput,
        "output_throughput": metrics.output_throughput,
        "total_token_throughput": metrics.total_token_throughput,
        "max_concurrency": None,
        "input_lens": [o.prompt_len for o in outputs],
        "output_lens": lens,
        "ttfts": [o.ttft for o in outputs],
        "itls": [o.itl for o in outputs],
        "latencies": [o.latency for o in outputs],
        "start_times": [o.start_time for o in outputs],
        "queue_times": [o.client_queue_time for o in outputs],
        "errors": [o.error for o in outputs],
    }
    for name in ("ttft", "tpot", "itl", "e2el"):
        for statistic in ("mean", "median", "std"):
            result[f"{statistic}_{name}_ms"] = getattr(metrics, f"{statistic}_{name}_ms")
        for q, value in getattr(metrics, f"percentiles_{name}_ms"):
            result[f"p{q:g}_{name}_ms"] = value
    return result


@pytest.mark.parametrize("seed", range(3))
def test_our_numbers_equal_those_of_vllms_own_code(tmp_path, seed):
    result = vllm_result(seed)
    assert 0 < result["failed"] < 80
    run = load_run(write_run(tmp_path / "a-r1", result))
    assert check_against_vllm(run) == []


@pytest.mark.parametrize(
    "key", ["mean_ttft_ms", "mean_tpot_ms", "p99_itl_ms", "std_e2el_ms", "completed"]
)
def test_a_number_that_differs_is_reported(tmp_path, key):
    result = vllm_result(0)
    result[key] *= 1.001
    differences = check_against_vllm(load_run(write_run(tmp_path / "a-r1", result)))
    assert len(differences) == 1
    assert differences[0].startswith(key)


def test_the_check_leaves_the_clients_queue_out_as_vllm_does(tmp_path):
    bench = bench_result([0.1, 0.2], [[0.01], [0.02]], max_concurrency=1, queue_times=[0.0, 0.3])
    assert check_against_vllm(load_run(write_run(tmp_path / "a-r1", bench))) == []


# Runs that are not clean


def test_a_run_with_failures_says_how_many_and_keeps_its_numbers(tmp_path):
    bench = bench_result(
        [0.1, 0.0, 0.2], [[0.01] * 4, [], [0.01] * 4], errors=["", "Server disconnected", ""]
    )
    run = load_run(write_run(tmp_path / "a-r1", bench))
    assert run.problems == ("1 of 3 requests failed (Server disconnected)",)
    assert run.kept.ttft_ms.tolist() == pytest.approx([100, 200])


def test_a_dead_engine_behind_a_living_server_shows_in_short_answers(tmp_path):
    bench = bench_result([0.1] * 4, [[0.01] * 63, [0.01] * 63, [0.01] * 20, []])
    asked = {"num_prompts": 4, "output_tokens": 64}
    run = load_run(write_run(tmp_path / "a-r1", bench, asked=asked))
    assert bench["failed"] == 0, "vLLM itself reports no failure here"
    assert len(run.problems) == 1
    assert run.problems[0].startswith("2 of 4 answers not as long as asked (1..21 tokens")


def test_lengths_may_be_asked_for_one_by_one_or_not_at_all(tmp_path):
    bench = bench_result([0.1, 0.1], [[0.01] * 3, [0.01] * 7])
    for asked, valid in (([4, 8], True), ([4, 9], False), (None, True)):
        folder = write_run(tmp_path / "a-r1", bench, asked={"output_tokens": asked})
        assert load_run(folder).valid is valid


def test_requests_missing_from_the_file_are_a_problem(tmp_path):
    bench = bench_result([0.1], [[0.01]])
    run = load_run(write_run(tmp_path / "a-r1", bench, asked={"num_prompts": 3}))
    assert run.problems == ("1 requests in the file, 3 asked",)


def test_prompts_of_another_length_are_noted(tmp_path):
    bench = bench_result([0.1] * 2, [[0.01]] * 2, input_lens=[16, 17])
    run = load_run(write_run(tmp_path / "a-r1", bench, asked={"input_tokens": 16}))
    assert run.valid
    assert run.notes == ("1 prompts not as long as asked (17..17 tokens)",)


def test_chunks_with_several_tokens_make_the_itl_per_chunk(tmp_path):
    bench = bench_result([0.1], [[0.04] * 8], output_lens=[33])
    run = load_run(write_run(tmp_path / "a-r1", bench))
    assert run.itl_unit == "chunk"
    assert run.notes == ("ITL is per chunk: 8 gaps for 32 tokens after the first",)


def test_one_token_answers_are_a_whole_run_without_itl(tmp_path):
    run = load_run(write_run(tmp_path / "a-r1", bench_result([0.1] * 3, [[]] * 3)))
    assert run.valid
    assert run.itl_unit == "token"
    assert run.kept_gaps_ms.size == 0


def test_of_appended_results_the_last_counts_and_a_note_says_so(tmp_path):
    text = "\n".join(json.dumps(bench_result([t], [[0.01]])) for t in (0.1, 0.2))
    run = load_run(write_run(tmp_path / "a-r1", text))
    assert run.requests.ttft_ms.tolist() == pytest.approx([200])
    assert "2 appended results" in run.notes[0]


def test_a_run_marked_as_failed_is_read_with_its_reason_when_it_left_a_whole_file(tmp_path):
    bench = bench_result([0.1], [[0.01]])
    folder = write_run(tmp_path / "a-r1", bench, status="failed", reason="server died")
    assert load_run(folder).problems == ("failed: server died",)


@pytest.mark.parametrize(
    ("bench", "info", "reason"),
    [
        (bench_result([0.0] * 5, [[]] * 5, errors=["refused"] * 5), {}, "0 of 5 requests succeed"),
        (bench_result([0.0] * 5, [[]] * 5, failed=(0, 1, 2, 3, 4)), {}, "no error text"),
        (bench_result([], []), {}, "0 requests"),
        ("", {}, "is empty"),
        (json.dumps(bench_result([0.1], [[0.01]]))[:-30], {}, "is cut"),
        (None, {}, "no bench.json"),
        (
            None,
            {"status": "timeout", "reason": "no answer in 180 s"},
            "timeout: no answer in 180 s",
        ),
    ],
)
def test_unusable_runs_are_refused_with_one_line(tmp_path, bench, info, reason):
    with pytest.raises(ResultError) as error:
        load_run(write_run(tmp_path / "a-r1", bench, **info))
    assert reason in str(error.value)
    assert "\n" not in str(error.value)


def test_a_run_in_which_only_warmup_succeeded_is_refused(tmp_path):
    bench = bench_result([0.1] * 10, [[0.01]] * 10, failed=tuple(range(1, 10)))
    with pytest.raises(ResultError, match="all of them warm-up"):
        load_run(write_run(tmp_path / "a-r1", bench))


def test_a_folder_without_run_json_is_unfinished(tmp_path):
    folder = write_run(tmp_path / "a-r1", bench_result([0.1], [[0.01]]))
    (folder / "run.json").unlink()
    with pytest.raises(ResultError, match="unfinished"):
        load_run(folder)


# Folders of runs


def test_all_runs_of_a_task_are_found_and_failed_ones_kept_apart(tmp_path):
    bench = bench_result([0.1], [[0.01]])
    write_run(tmp_path / "task3-cpu" / "a-r1", bench)
    write_run(tmp_path / "task3-cpu" / "a-r2", "", repeat=2)
    write_run(tmp_path / "task2-cpu" / "x64-r1", bench, task="task2")
    runs, failed = load_runs(tmp_path, "task3")
    assert [run.info.folder.name for run in runs] == ["a-r1"]
    assert [(f.info.folder.name, f.info.repeat) for f in failed] == [("a-r2", 2)]


def test_unfinished_folders_are_found_by_the_logs_they_have(tmp_path):
    write_run(tmp_path / "task3-cpu" / "a-r1", bench_result([0.1], [[0.01]]))
    half = tmp_path / "task3-cpu" / "b-r1"
    half.mkdir()
    (half / "server.log").write_text("starting")
    _, failed = load_runs(tmp_path, "task3")
    assert [(f.info.arm, f.reason.split(":")[0]) for f in failed] == [("b-r1", "unfinished")]


def test_pytorch_files_and_logs_beside_the_runs_are_not_runs(tmp_path):
    folder = write_run(tmp_path / "task3-cpu" / "a-r1", bench_result([0.1], [[0.01]]))
    (folder / "bench.pytorch.json").write_text("[]")
    (tmp_path / "task3-cpu" / "servers").mkdir()
    (tmp_path / "task3-cpu" / "servers" / "a.log").write_text("log")
    assert find_run_folders(tmp_path) == [folder]
    assert load_run(folder).valid


def test_a_single_run_folder_can_be_named(tmp_path):
    folder = write_run(tmp_path / "a-r1", bench_result([0.1], [[0.01]]))
    runs, _ = load_runs(folder)
    assert len(runs) == 1


def test_no_runs_are_an_error_that_says_what_to_do(tmp_path):
    with pytest.raises(ResultError, match=r"no run of task3 below .*: run task3 first"):
        load_runs(tmp_path, "task3")


def test_profiles_are_not_mixed(tmp_path):
    bench = bench_result([0.1], [[0.01]])
    write_run(tmp_path / "task3-cpu" / "a-r1", bench)
    write_run(tmp_path / "task3-gpu" / "a-r1", bench, profile={"name": "gpu"})
    with pytest.raises(ResultError, match="mixes the profiles cpu, gpu"):
        load_runs(tmp_path, "task3")

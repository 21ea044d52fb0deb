"""What a run is, read back from its two command lines."""

from pathlib import Path

import pytest

from lab3.commands import BenchCommand, ServeCommand, assignments, number, option, point

SERVE = [
    *("vllm", "serve", "models/tiny", "--port", "8123", "--max-num-batched-tokens", "512"),
    *("--max-num-seqs", "64", "--scheduler-cls", "my_scheduler.SJFScheduler"),
    *("--additional-config", '{"lab3": {"record": "/tmp/x.jsonl", "aging_tokens_per_s": 50}}'),
]
BENCH = [
    *("vllm", "bench", "serve", "--dataset-name", "random", "--random-input-len", "256"),
    *("--random-output-len", "64", "--num-prompts", "200", "--request-rate", "20"),
]


def test_serve_command_is_read() -> None:
    serve = ServeCommand.read(SERVE)
    assert serve.port == 8123
    assert serve.url == "http://127.0.0.1:8123"
    assert serve.scheduler_cls == "my_scheduler.SJFScheduler"
    assert serve.settings == {"aging_tokens_per_s": 50}
    assert serve.record == Path("/tmp/x.jsonl")


def test_default_serve_command_has_no_scheduler_no_record_and_vllms_port() -> None:
    serve = ServeCommand.read(["vllm", "serve", "m"])
    assert (serve.scheduler_cls, serve.settings, serve.record, serve.port) == (None, {}, None, 8000)


def test_bench_command_is_read() -> None:
    bench = BenchCommand.read(BENCH)
    assert bench.asked == {"input_tokens": 256, "output_tokens": 64, "num_prompts": 200}
    assert bench.request_rate == 20.0
    assert bench.load == "200 requests at 20/s"
    assert bench.saving_to(Path("/r"), "b.json")[-4:] == [
        *("--result-dir", "/r"),
        *("--result-filename", "b.json"),
    ]


def test_varied_lengths_and_other_data_sets_ask_for_no_single_length() -> None:
    varied = BenchCommand.read([*BENCH, "--random-range-ratio", "0.5"])
    other = BenchCommand.read([*BENCH, "--dataset-name", "sharegpt"])
    assert varied.asked == {"input_tokens": None, "output_tokens": None, "num_prompts": 200}
    assert other.asked == varied.asked
    assert BenchCommand.read([*BENCH, "--random-range-ratio", "0"]).asked["input_tokens"] == 256


@pytest.mark.parametrize("rate", [["--request-rate", "inf"], []])
def test_rate_inf_is_all_at_once(rate: list[str]) -> None:
    bench = BenchCommand.read([*BENCH[:-2], *rate])
    assert bench.load == "200 requests all at once"
    assert point(ServeCommand.read(["x"]), bench) == ({"request_rate": "inf"} if rate else {})


def test_the_last_of_repeated_options_counts() -> None:
    words = [*SERVE, "--max-num-seqs=8", "--max_num_batched_tokens", "1024"]
    assert point(ServeCommand.read(words), BenchCommand.read(BENCH)) == {
        "max_num_batched_tokens": 1024,
        "max_num_seqs": 8,
        "request_rate": 20.0,
    }


def test_option_without_a_value_is_not_given() -> None:
    assert option(["--port"], "port") is None
    assert number(["--port"], "port") is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--port", "eighty"], "--port must be a number"),
        (["--port", "0"], "--port must be between 1 and 65535"),
        (["--port", "80.5"], "--port must be between 1 and 65535"),
        (["--additional-config", "{lab3}"], "--additional-config is not JSON"),
        (["--additional-config", "[1]"], "--additional-config must look like"),
        (["--additional-config", '{"lab3": 3}'], "--additional-config must look like"),
    ],
)
def test_nonsense_is_one_clear_line(words: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        ServeCommand.read(["vllm", "serve", *words])
    assert "\n" not in str(caught.value)


def test_port_and_record_file_do_not_count_as_another_measurement() -> None:
    elsewhere = [word.replace("8123", "9000").replace("/tmp/x", "/home/y") for word in SERVE]
    assert ServeCommand.read(elsewhere).comparable() == ServeCommand.read(SERVE).comparable()


def test_settings_and_load_count_as_another_measurement() -> None:
    aged = [word.replace('s": 50', 's": 60') for word in SERVE]
    assert ServeCommand.read(aged).comparable() != ServeCommand.read(SERVE).comparable()
    faster = [*BENCH, "--request-rate", "24"]
    assert BenchCommand.read(faster).comparable() != BenchCommand.read(BENCH).comparable()


def test_result_file_does_not_count_as_another_measurement() -> None:
    bench = BenchCommand.read(BENCH)
    saved = BenchCommand.read(bench.saving_to(Path("/a"), "b.json"))
    assert saved.comparable() == bench.comparable()


def test_variables_set_before_a_command_are_read_and_count_as_part_of_it() -> None:
    words = ["env", "LAB3_PREDICTOR=noise:0.5,bias:2", "X=", *SERVE]
    assert assignments(words) == {"LAB3_PREDICTOR": "noise:0.5,bias:2", "X": ""}
    assert assignments(SERVE) == assignments([]) == {}
    assert assignments(["env", "vllm", "A=B"]) == {}
    other = ["env", "LAB3_PREDICTOR=oracle", "X=", *SERVE]
    assert ServeCommand.read(words).comparable() != ServeCommand.read(other).comparable()
    assert ServeCommand.read(words).port == 8123

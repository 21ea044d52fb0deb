"""Workloads: equal to vLLM's own client for the same seed; traces and predictions."""

import asyncio
import math
from dataclasses import replace

import numpy as np
import pytest
from vllm.benchmarks import serve
from vllm.benchmarks.datasets.datasets import RandomDataset, SampleRequest

from lab3.sim import workload as wl
from lab3.sim.predictions import ClassMedians, history_quantile, predicted
from lab3.sim.traces import read_measured_requests, read_trace


class CharTokenizer:
    """One token a character; decoding and encoding are each other's inverse."""

    vocab_size = 200
    all_special_ids = ()

    def num_special_tokens_to_add(self) -> int:
        return 0

    def decode(self, ids, **_):
        return "".join(chr(1000 + id_) for id_ in ids)

    def encode(self, text, **_):
        return [ord(char) - 1000 for char in text]


@pytest.mark.parametrize(("seed", "ratio"), [(0, 0.0), (42, 0.0), (42, 0.5), (7, 0.9)])
def test_random_lengths_are_those_of_vllm_bench_serve(seed, ratio):
    sent = RandomDataset(random_seed=seed).sample(
        CharTokenizer(), 50, input_len=64, output_len=16, range_ratio=ratio
    )
    ours = wl.random_workload(50, 64, 16, seed=seed, range_ratio=ratio)
    assert list(ours.input_tokens) == [r.prompt_len for r in sent]
    assert list(ours.output_tokens) == [r.expected_output_len for r in sent]


@pytest.mark.parametrize(
    ("rate", "burstiness"), [(16.0, 1.0), (4.0, 0.3), (8.0, math.inf), (math.inf, 1.0)]
)
def test_arrivals_are_those_of_vllm_bench_serve(monkeypatch, rate, burstiness):
    now_s = [0.0]

    async def sleep(seconds):
        now_s[0] += seconds

    async def send_times():
        requests = [SampleRequest(prompt="", prompt_len=1) for _ in range(30)]
        stream = serve.get_request(requests, rate, burstiness)
        return [now_s[0] async for _ in stream]

    monkeypatch.setattr(serve.time, "time", lambda: now_s[0])
    monkeypatch.setattr(serve.asyncio, "sleep", sleep)
    np.random.seed(42)
    sent_s = asyncio.run(send_times())
    assert wl.bench_arrivals(30, rate, seed=42, burstiness=burstiness) == pytest.approx(sent_s)


def test_shapes_have_their_quantiles():
    for shape, (inputs, outputs) in wl.SHAPES.items():
        made = wl.shaped_workload(shape, 20_000, seed=3, rate=5.0)
        for tokens, asked in ((made.input_tokens, inputs), (made.output_tokens, outputs)):
            found = np.quantile(tokens, list(asked))
            assert found == pytest.approx(list(asked.values()), rel=0.08), shape


def test_requests_that_are_too_long_are_clipped_dropped_or_refused_and_it_is_said():
    made = wl.Workload("w", (0.0, 1.0, 2.0), (10, 900, 100), (10, 300, 900))
    clipped = wl.fit_lengths(made, 1000, "clip")
    assert clipped.input_tokens == (10, 700, 100)
    assert clipped.output_tokens == (10, 300, 900)
    assert clipped.notes == ("1 of 3 requests clipped to 1000 tokens",)
    assert wl.fit_lengths(made, 600, "clip").longest == 600
    dropped = wl.fit_lengths(made, 600, "drop")
    assert dropped.input_tokens == (10,)
    assert dropped.notes == ("2 requests over 600 tokens dropped",)
    with pytest.raises(ValueError, match="2 of 3 requests are longer than 600 tokens"):
        wl.fit_lengths(made, 600, "refuse")
    assert wl.fit_lengths(made, 1200, "refuse") is made


def test_scaling_keeps_the_order_and_changes_the_rate():
    made = wl.random_workload(100, 10, 10, seed=1, rate=5.0)
    faster = wl.scale_rate(made, 4.0)
    assert faster.offered_rate == pytest.approx(4 * made.offered_rate)
    with pytest.raises(ValueError, match="above 0"):
        wl.scale_rate(made, 0)


AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:05.9799600,24,8
2023-11-16 18:17:03.9799600,374,44
2023-11-16 18:17:04.0319600,0,109
"""
BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,0,1087,Conversation log
118,GPT-4,417,276,693,API log
"""
OWN = "output_tokens,input_tokens,arrival_s\n5,30,1.5\n7,20,0.5\n"


@pytest.mark.parametrize(
    ("text", "arrivals", "inputs", "outputs"),
    [
        (AZURE, [0.0, 2.0], (374, 24), (44, 8)),
        (BURSTGPT, [0.0, 113.0], (472, 417), (18, 276)),
        (OWN, [0.0, 1.0], (20, 30), (7, 5)),
        ("input_tokens,output_tokens\n3,4\n5,6\n", [0.0, 0.0], (3, 5), (4, 6)),
    ],
)
def test_traces_are_read_as_they_are_published(tmp_path, text, arrivals, inputs, outputs):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    found = read_trace(path)
    assert found.arrival_s == pytest.approx(arrivals)
    assert (found.input_tokens, found.output_tokens) == (inputs, outputs)
    left_out = text.strip().count("\n") - len(inputs)
    assert bool(left_out) == any("left out" in note for note in found.notes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not a CSV file"),
        ("a,b\n1,2\n", "has the columns a, b; known:"),
        ("input_tokens,output_tokens\n0,0\n", "has no row with input and output tokens"),
        ("arrival_s,input_tokens,output_tokens\nnoon,1,1\n", "neither seconds nor dates"),
    ],
)
def test_an_unusable_trace_is_refused_in_one_line(tmp_path, text, message):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        read_trace(path)
    assert "\n" not in str(caught.value)


def test_measured_requests_count_from_the_moment_they_were_queued(tmp_path):
    path = tmp_path / "requests.jsonl"
    row = (
        '{"input_toks": 5, "output_toks": %d, "arrival_time": %f, "queued_ts": 10.0,'
        ' "first_token_ts": 10.5, "last_token_ts": 12.0}\n'
    )
    path.write_text(row % (7, 101.0) + row % (3, 100.0))
    found = read_measured_requests(path)
    assert found.workload.arrival_s == (0.0, 1.0)
    assert found.workload.output_tokens == (3, 7)
    assert found.ttft_s.tolist() == [0.5, 0.5]
    assert found.e2e_s.tolist() == [2.0, 2.0]
    path.write_text('{"input_toks": 5}\n')
    with pytest.raises(ValueError, match="is not a file of measured requests"):
        read_measured_requests(path)


MADE = wl.Workload("w", tuple(np.arange(4000.0)), (100,) * 4000, (200,) * 4000)


def test_predictions_have_the_noise_bias_and_gaps_that_were_asked_for():
    assert predicted(MADE, "none").predicted_tokens == ()
    assert set(predicted(MADE, "oracle").predicted_tokens) == {200}
    assert set(predicted(MADE, "bias:1.5").predicted_tokens) == {300}
    noisy = np.array(predicted(MADE, "noise:0.2", seed=1).predicted_tokens)
    assert noisy.std() == pytest.approx(40, rel=0.1)
    assert noisy.mean() == pytest.approx(200, rel=0.02)
    assert min(predicted(MADE, "noise:2", seed=1).predicted_tokens) == 1
    missing = predicted(MADE, "oracle,missing:0.3", seed=1).predicted_tokens
    assert sum(n is None for n in missing) / 4000 == pytest.approx(0.3, abs=0.03)
    assert predicted(MADE, "noise:1", seed=5) == predicted(MADE, "noise:1", seed=5)
    assert predicted(MADE, "noise:1", seed=5) != predicted(MADE, "noise:1", seed=6)


def test_class_medians_come_from_a_file(tmp_path):
    halves = replace(MADE, input_tokens=(10,) * 2000 + (900,) * 2000)
    halves = replace(halves, output_tokens=(20,) * 2000 + (500,) * 2000)
    ClassMedians.of(halves, [100]).write(tmp_path / "classes.json")
    found = predicted(halves, f"classes:{tmp_path / 'classes.json'}")
    assert found.predicted_tokens == halves.output_tokens


def test_history_knows_only_what_has_ended():
    made = wl.Workload("w", (0.0, 1.0, 10.0, 11.0), (1,) * 4, (100, 25, 50, 50))
    found = history_quantile(made, 1.0)
    assert np.isnan(found[:2]).all()
    assert found[2:].tolist() == [100.0, 100.0]


@pytest.mark.parametrize("text", ["orcale", "noise", "noise:x", "missing:2", "oracle:1", "bias:-1"])
def test_a_mistaken_prediction_is_refused(text):
    with pytest.raises(ValueError, match="prediction"):
        predicted(MADE, text)

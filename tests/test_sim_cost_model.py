"""Step times against the arithmetic done by hand, and the cost model file."""

from dataclasses import replace

import pytest

from lab3.sim import presets
from lab3.sim.cost_model import (
    FittedCost,
    Roofline,
    StepLoad,
    load_cost_model,
    save_cost_model,
)

A100_7B = Roofline.named(
    "qwen2.5-7b",
    "a100-80g",
    compute_efficiency=1.0,
    bandwidth_efficiency=1.0,
    layer_overhead_us=0.0,
    step_overhead_ms=0.0,
    request_overhead_us=0.0,
)


@pytest.mark.parametrize(
    ("model", "billions", "kv_bytes"),
    [
        ("qwen3-0.6b", 0.596, 114_688),
        ("qwen2.5-7b", 7.615, 57_344),
        ("llama-3.1-8b", 8.030, 131_072),
    ],
)
def test_models_have_the_size_in_their_name(model, billions, kv_bytes):
    found = presets.find_model(model)
    embeddings = found.head_params * (1 if found.tied_embedding else 2)
    assert (found.layer_params + embeddings) / 1e9 == pytest.approx(billions, abs=0.001)
    assert found.kv_bytes_per_token == kv_bytes


def test_kv_blocks_are_what_vllm_reported_on_an_rtx_4090():
    found = presets.kv_blocks(presets.find_device("rtx-4090"), presets.find_model("llama-3.1-8b"))
    assert found == pytest.approx(2588, rel=0.02)


def test_a_single_decode_reads_all_weights_once():
    load = StepLoad(decode_tokens=1, decode_requests=1, decode_context_tokens=1000)
    model = A100_7B.model
    read = model.weight_bytes + 1001 * model.kv_bytes_per_token + model.activation_bytes_per_token
    assert A100_7B.step_s(load, overlap=False) == pytest.approx(read / 2039e9)


def test_a_prefill_is_bound_by_compute():
    load = StepLoad(prefill_tokens=2048, prefill_requests=1, prefill_pairs=2048 * 2049 / 2)
    flops = 2 * 2048 * A100_7B.model.layer_params
    assert flops / 312e12 < A100_7B.step_s(load, overlap=False) < 1.25 * flops / 312e12


def test_a_mixed_step_costs_less_than_its_parts():
    prefill = StepLoad(prefill_tokens=64, prefill_requests=1)
    decode = StepLoad(decode_tokens=32, decode_requests=32, decode_context_tokens=32_000)
    both = StepLoad(64, 1, 0.0, 0, 32, 32, 32_000)
    parts = A100_7B.device_s(prefill) + A100_7B.device_s(decode)
    assert max(map(A100_7B.device_s, (prefill, decode))) < A100_7B.device_s(both) < parts


def test_async_scheduling_hides_the_host_behind_the_device():
    slow_host = Roofline.named("qwen3-0.6b", "h200", step_overhead_ms=50.0, request_overhead_us=0.0)
    load = StepLoad(decode_tokens=1, decode_requests=1, decode_context_tokens=10)
    device_s = slow_host.device_s(load)
    assert slow_host.step_s(load, overlap=True) == pytest.approx(0.050)
    assert slow_host.step_s(load, overlap=False) == pytest.approx(0.050 + device_s)


def test_unknown_names_are_answered_with_the_known_ones():
    with pytest.raises(ValueError, match=r"unknown hardware 'a1000'; known: a100-80g, h100"):
        Roofline.named("qwen2.5-7b", "a1000")
    with pytest.raises(ValueError, match=r"unknown model 'gpt'; known: qwen3-0\.6b"):
        Roofline.named("gpt", "h100")
    with pytest.raises(ValueError, match="unknown cost parameter 'speed'; known:"):
        Roofline.named("qwen2.5-7b", "h100", speed=2)
    small = replace(presets.find_device("rtx-4090"), memory_gib=10.0)
    with pytest.raises(ValueError, match="leaves no room for a KV cache"):
        presets.kv_blocks(small, presets.find_model("llama-3.1-8b"))


def test_a_fitted_model_survives_its_file(tmp_path):
    fitted = FittedCost(
        500.0, {"decode_requests": 30.0, "kv_tokens": 0.01}, (0.9, 1.0, 1.5), 4.0, "x"
    )
    save_cost_model(fitted, tmp_path / "cost.json")
    read = load_cost_model(tmp_path / "cost.json")
    load = StepLoad(decode_requests=10, kv_tokens=1000)
    assert read.step_s(load, False) == fitted.step_s(load, False) == pytest.approx(810e-6)
    assert [read.ratio(u) for u in (0.0, 0.25, 0.5, 1.0)] == pytest.approx([0.9, 0.95, 1.0, 1.5])


@pytest.mark.parametrize("text", ["", "[]", '{"kind": "roofline"}', '{"kind": "fitted"}'])
def test_another_file_is_refused_in_one_line(tmp_path, text):
    path = tmp_path / "cost.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="is no cost model: make one with") as caught:
        load_cost_model(path)
    assert "\n" not in str(caught.value)

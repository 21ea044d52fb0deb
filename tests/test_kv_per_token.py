"""Bytes of a token in the KV cache, from a server's log and the model's config.json."""

import json

import pytest

from lab3.kv_per_token import kv_bytes_from_log

QWEN3 = {
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_size": 1024,
    "layer_types": ["full_attention"] * 28,
}


@pytest.fixture
def log_of(tmp_path):
    """Log of a server for a model with this config."""

    def log(config=QWEN3, dtype="bfloat16", kv_dtype="auto"):
        text = config if isinstance(config, str) else json.dumps(config)
        (tmp_path / "config.json").write_text(text)
        return (
            "INFO [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: "
            f"model='{tmp_path}', speculative_config=None, tokenizer='{tmp_path}', "
            f"dtype=torch.{dtype}, max_seq_len=4096, kv_cache_dtype={kv_dtype}, device_config=cpu\n"
        )

    return log


def test_the_labs_model_takes_the_labs_number_of_bytes(log_of):
    assert kv_bytes_from_log(log_of()) == 114_688
    assert kv_bytes_from_log(log_of(dtype="float32")) == 2 * 114_688


def test_the_caches_own_dtype_counts(log_of):
    assert kv_bytes_from_log(log_of(dtype="float32", kv_dtype="bfloat16")) == 114_688
    assert kv_bytes_from_log(log_of(kv_dtype="fp8")) is None


def test_the_text_part_of_a_larger_model_counts(log_of):
    assert kv_bytes_from_log(log_of({"text_config": QWEN3, "vision_config": {}})) == 114_688


@pytest.mark.parametrize(
    "config",
    [
        QWEN3 | {"layer_types": ["sliding_attention", "full_attention"] * 14},
        QWEN3 | {"kv_lora_rank": 512},
        {"model_type": "mamba"},
        "[]",
        "{",
    ],
)
def test_what_the_formula_does_not_cover_is_unknown(log_of, config):
    assert kv_bytes_from_log(log_of(config)) is None


def test_a_log_without_the_engines_line_or_a_model_that_is_not_here_is_unknown(log_of, tmp_path):
    assert kv_bytes_from_log("nothing of the kind") is None
    log = log_of()
    (tmp_path / "config.json").unlink()
    assert kv_bytes_from_log(log) is None
    assert kv_bytes_from_log(log.replace(str(tmp_path), "lab3-tests/no-such-model")) is None

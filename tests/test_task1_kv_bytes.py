"""KV bytes per token, on configs with and without every key that matters."""

from types import SimpleNamespace

import pytest
from transformers import GPT2Config, LlamaConfig, Qwen3Config

from lab3.task1.kv_bytes import kv_bytes_per_token, rectangle_peak_tokens

QWEN3 = {
    "num_hidden_layers": 28,
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
}


def test_the_labs_own_number() -> None:
    assert kv_bytes_per_token(Qwen3Config(**QWEN3), "float16") == 114_688


def test_head_dim_is_not_hidden_size_over_heads_where_the_config_names_it() -> None:
    without = SimpleNamespace(**{k: v for k, v in QWEN3.items() if k != "head_dim"})
    assert kv_bytes_per_token(without, "float16") == 114_688 // 2


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        # 30 layers, 3 of 9 heads, 576 / 9 = 64
        (
            LlamaConfig(
                num_hidden_layers=30,
                hidden_size=576,
                num_attention_heads=9,
                num_key_value_heads=3,
            ),
            2 * 30 * 3 * 64 * 2,
        ),
        # neither key, other names: 12 layers, 12 heads, 768
        (GPT2Config(), 2 * 12 * 12 * 64 * 2),
    ],
)
def test_grouped_and_plain_attention(config: object, expected: int) -> None:
    assert kv_bytes_per_token(config, "bfloat16") == expected


def test_float32_takes_twice_as_much() -> None:
    config = Qwen3Config(**QWEN3)
    assert kv_bytes_per_token(config, "float32") == 2 * kv_bytes_per_token(config, "bfloat16")


def test_a_multimodal_config_counts_its_text_part() -> None:
    nested = SimpleNamespace(text_config=SimpleNamespace(**QWEN3), num_hidden_layers=99)
    assert kv_bytes_per_token(nested, "float16") == 114_688


def test_refuses_what_the_formula_does_not_describe() -> None:
    with pytest.raises(ValueError, match="latent attention"):
        kv_bytes_per_token(SimpleNamespace(**QWEN3, kv_lora_rank=512), "float16")
    with pytest.raises(ValueError, match="dtype 'int4'"):
        kv_bytes_per_token(SimpleNamespace(**QWEN3), "int4")


def test_peak_of_rectangles() -> None:
    one_by_one = [(1, 200, 128), (1, 512, 128), (1, 300, 128)]
    assert rectangle_peak_tokens(one_by_one) == 512 + 128
    assert rectangle_peak_tokens([(3, 512, 128)]) == 3 * (512 + 128)
    # The widest batch need not be the one with the longest prompt.
    assert rectangle_peak_tokens([(4, 200, 128), (1, 512, 128)]) == 4 * 328

"""How many bytes of KV cache a token takes, and what padded batches hold at their peak.

    bytes per token = 2 (K and V) x layers x KV heads x head size x bytes of the dtype

Qwen3-0.6B in 16 bit: 2 x 28 x 8 x 128 x 2 = 114,688 bytes.
"""

from collections.abc import Iterable
from typing import Any

DTYPE_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}


def kv_bytes_per_token(config: Any, dtype: str) -> int:
    """Bytes of K and V that one token adds over all layers.

    ``config`` is a transformers config; the text part of a multimodal one is found. Raises
    ValueError for a model whose layers do not keep plain K and V heads, and for an unknown dtype.
    """
    if dtype not in DTYPE_BYTES:
        raise ValueError(f"dtype {dtype!r}: use one of {', '.join(DTYPE_BYTES)}")
    text = getattr(config, "text_config", None) or config
    if getattr(text, "kv_lora_rank", None):
        raise ValueError("the KV formula does not hold for latent attention (kv_lora_rank is set)")
    heads = text.num_attention_heads
    # Old configs have neither key: every head has its own K and V, and they share hidden_size.
    kv_heads = getattr(text, "num_key_value_heads", None) or heads
    head_size = getattr(text, "head_dim", None) or text.hidden_size // heads
    return 2 * text.num_hidden_layers * kv_heads * head_size * DTYPE_BYTES[dtype]


def rectangle_peak_tokens(batches: Iterable[tuple[int, int, int]]) -> int:
    """Token slots that Hugging Face holds at its peak, padding included.

    ``batches`` are (rows, width, steps): every row is as wide as the longest prompt, ``width``, and
    grows by ``steps``. One request at a time is a row of its own width: the longest one decides.
    """
    return max(rows * (width + steps) for rows, width, steps in batches)

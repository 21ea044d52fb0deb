"""Which model a name means, and what the plans must know about it before they load it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab3.task1.kv_bytes import DTYPE_BYTES


@dataclass(frozen=True)
class Model:
    """A model's name or folder, its tokenizer and config, and the ids both engines stop at."""

    path: str
    name: str
    tokenizer: Any
    config: Any
    dtype: str
    eos_token_ids: list[int]
    pad_token_id: int
    max_tokens: int


def find_model(name: str, dtype: str) -> Model:
    """Resolve ``local:NAME``, ``smollm2``, a folder or a hub name; makes or converts it if needed.

    ``dtype`` "auto" is the one the config names. Raises ValueError with one line.
    """
    path = _path(name)
    config, tokenizer = _load(name, path)
    text = getattr(config, "text_config", None) or config
    if dtype == "auto":
        dtype = str(getattr(config, "dtype", None) or getattr(text, "dtype", None))
        dtype = dtype.removeprefix("torch.")
        # vLLM, too, runs a float32 model in 16 bit when the dtype is left to it.
        dtype = dtype if dtype in DTYPE_BYTES and dtype != "float32" else "bfloat16"
    if dtype not in DTYPE_BYTES:
        raise ValueError(f"dtype {dtype!r}: use auto or one of {', '.join(DTYPE_BYTES)}")
    eos = eos_token_ids(path, config, tokenizer)
    # Padding is masked out, so any token will do; eos needs no new row in the embedding.
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else eos[0]
    limit = getattr(text, "max_position_embeddings", None) or 2**31
    return Model(path, Path(path).name, tokenizer, config, dtype, eos, pad, limit)


def _path(name: str) -> str:
    if name == "smollm2":
        from lab3 import smollm2

        return str(smollm2.ensure())
    from lab3.local_model import resolve

    return resolve(name)


def _load(name: str, path: str) -> tuple[Any, Any]:
    from transformers import AutoConfig, AutoTokenizer

    try:
        return AutoConfig.from_pretrained(path), AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        what = str(error).strip().split("\n")[0]
        raise ValueError(
            f"no model {name!r}: it is no folder with a model, no local:NAME, not smollm2, and "
            f"could not be loaded from Hugging Face ({what})"
        ) from None


def eos_token_ids(path: str, config: Any, tokenizer: Any) -> list[int]:
    """All ids that end an answer: the generation config's, else the config's, else the tokenizer's.

    Raises ValueError when there is none.
    """
    from transformers import GenerationConfig

    try:
        generation = GenerationConfig.from_pretrained(path).eos_token_id
    except (OSError, ValueError):
        generation = None
    for found in (generation, getattr(config, "eos_token_id", None), tokenizer.eos_token_id):
        if found is not None:
            return list(found) if isinstance(found, list | tuple) else [found]
    raise ValueError("the model names no end-of-sequence token")

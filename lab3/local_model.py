"""Small random Qwen3 models for machines that have no weights: ``python -m lab3.local_model tiny``.

The result, ``models/<name>/``, is an ordinary Hugging Face folder: safetensors, config, tokenizer.

* Weights are random from a seed, the same bytes for the same seed, and large enough
  (``initializer_range``) and untied, so that greedy output differs between prompts; tied random
  weights only repeat the last token.
* Every printable character is one token. Decoding and encoding again gives the same tokens and
  nothing is added, so ``vllm bench serve --dataset-name random`` prompts have the asked length.
"""

import argparse
import json
import os
import shutil
import string
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
MODELS_DIR = REPOSITORY / "models"
MAX_POSITION_EMBEDDINGS = 4096
INITIALIZER_RANGE = 0.06
DTYPES = ("bfloat16", "float32")
LOCAL_PREFIX = "local:"

# A prompt can hold any characters, so the special tokens use two that are not in the vocabulary.
PAD, BOS, EOS = "\u2039pad\u203a", "\u2039bos\u203a", "\u2039eos\u203a"
CHARACTERS = [c for c in string.printable if c not in "\r\x0b\x0c"]
# Stands for every character that is not in the vocabulary; not special, so nothing is dropped.
UNKNOWN = "?"

_MANIFEST = "lab3_model.json"
_FILES = ("model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json")
# Raise when the meaning of a model's name changes, so that older folders are made again.
_VERSION = 1


@dataclass(frozen=True)
class Shape:
    """Sizes of one model; every head has ``head_dim`` dimensions."""

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int = 32


SHAPES = {
    "micro": Shape(2, 64, 128, 2, 1),
    "m2": Shape(2, 128, 256, 4, 2),
    "m3": Shape(2, 256, 768, 8, 4),
    "tiny": Shape(4, 256, 768, 8, 4),
}


def build(
    name: str, *, seed: int = 0, dtype: str = "bfloat16", models_dir: Path = MODELS_DIR
) -> Path:
    """Make ``models_dir/name`` unless it is there, whole, and of the same shape, seed and dtype.

    The folder appears under its name only when it is complete. Two processes may build at once.
    Raises ValueError for an unknown name or dtype.
    """
    if name not in SHAPES:
        raise ValueError(f"no local model {name!r}; known: {', '.join(SHAPES)}")
    if dtype not in DTYPES:
        raise ValueError(f"no dtype {dtype!r} for a local model; known: {', '.join(DTYPES)}")
    target = models_dir / name
    manifest = {
        "version": _VERSION,
        "shape": asdict(SHAPES[name]),
        "seed": seed,
        "dtype": dtype,
        "initializer_range": INITIALIZER_RANGE,
    }
    if not _is_complete(target, manifest):
        models_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=models_dir) as scratch:
            made = Path(scratch) / "made"
            made.mkdir()
            _save_model(SHAPES[name], seed, dtype, made)
            _save_tokenizer(made)
            (made / _MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
            _put_in_place(made, target, Path(scratch) / "old", manifest)
    return target


def resolve(model: str) -> str:
    """``local:NAME`` as the path of that model, made on first use; any other model unchanged.

    The path is relative where the working directory holds the repository's ``models``.
    """
    if not model.startswith(LOCAL_PREFIX):
        return model
    path = build(model.removeprefix(LOCAL_PREFIX))
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def _is_complete(folder: Path, manifest: dict) -> bool:
    if not all((folder / file).is_file() for file in _FILES):
        return False
    try:
        return json.loads((folder / _MANIFEST).read_text()) == manifest
    except (OSError, ValueError):
        return False


def _put_in_place(made: Path, target: Path, old: Path, manifest: dict) -> None:
    try:
        if target.exists():
            target.rename(old)
        made.rename(target)
    except OSError:
        # Another process was quicker. A folder cannot be renamed onto one that has files in it.
        if not _is_complete(target, manifest):
            raise
    shutil.rmtree(old, ignore_errors=True)


def _save_model(shape: Shape, seed: int, dtype: str, folder: Path) -> None:
    import torch
    from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    ids = {token: i for i, token in enumerate(_vocabulary())}
    special = {
        "pad_token_id": ids[PAD],
        "bos_token_id": ids[BOS],
        "eos_token_id": ids[EOS],
    }
    config = Qwen3Config(
        vocab_size=len(ids),
        num_hidden_layers=shape.num_layers,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=MAX_POSITION_EMBEDDINGS,
        initializer_range=INITIALIZER_RANGE,
        tie_word_embeddings=False,
        **special,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(**special)
    model.to(getattr(torch, dtype)).save_pretrained(folder)


def _save_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: i for i, token in enumerate(_vocabulary())}
    # BPE without merges splits a text into its characters, white space included.
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=UNKNOWN))
    tokenizer.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        padding_side="left",
        model_max_length=MAX_POSITION_EMBEDDINGS,
        clean_up_tokenization_spaces=False,
    ).save_pretrained(folder)


def _vocabulary() -> list[str]:
    return [PAD, BOS, EOS, *CHARACTERS]


def main(argv: list[str] | None = None) -> int:
    """Command line: print the model's folder, or one line on stderr and exit status 2."""
    parser = argparse.ArgumentParser(description="Make a small random Qwen3 model.")
    parser.add_argument("name", help=f"one of: {', '.join(SHAPES)}")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", default="bfloat16", help=f"one of: {', '.join(DTYPES)}")
    parser.add_argument("--models-dir", type=Path, default=MODELS_DIR)
    args = parser.parse_args(argv)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        print(build(args.name, seed=args.seed, dtype=args.dtype, models_dir=args.models_dir))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The local model: an exact tokenizer, the same bytes for a seed, whole or not there at all."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lab3 import local_model

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def tokenizer(micro_model: Path):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(micro_model)


def test_decoding_and_encoding_gives_the_same_tokens(tokenizer) -> None:
    ids = list(range(3, tokenizer.vocab_size))
    # Every pair of neighbours: no merge, no white space eaten, nothing added at either end.
    pairs = [token for a in ids for b in ids for token in (a, b)]
    assert tokenizer.encode(tokenizer.decode(pairs)) == pairs
    assert [tokenizer.decode([i]) for i in ids] == local_model.CHARACTERS


def test_spelling_a_special_token_does_not_make_one(tokenizer) -> None:
    assert len(tokenizer.encode("<eos> \u4f60\u597d")) == len("<eos> \u4f60\u597d")
    assert tokenizer.num_special_tokens_to_add() == 0


@pytest.mark.parametrize(("input_len", "range_ratio"), [(1, 0.0), (256, 0.0), (1024, 0.5)])
def test_random_prompts_of_vllm_bench_have_the_asked_length(
    tokenizer, input_len: int, range_ratio: float
) -> None:
    from vllm.benchmarks.datasets.datasets import RandomDataset

    requests = RandomDataset(random_seed=42).sample(
        tokenizer, 50, input_len=input_len, output_len=64, range_ratio=range_ratio
    )
    counted = [len(tokenizer.encode(r.prompt)) for r in requests]
    assert counted == [r.prompt_len for r in requests]
    spread = range(int(input_len * (1 - range_ratio)), int(input_len * (1 + range_ratio)) + 1)
    assert all(length in spread for length in counted)
    assert (len(set(counted)) > 1) == (range_ratio > 0)


def test_the_same_seed_gives_the_same_bytes_in_another_process(tmp_path: Path) -> None:
    def made(folder: Path) -> dict[str, bytes]:
        return {p.name: p.read_bytes() for p in (folder / "micro").iterdir()}

    command = [sys.executable, "-m", "lab3.local_model", "micro", "--seed", "7"]
    env = os.environ | {"PYTHONHASHSEED": "1", "OMP_NUM_THREADS": "1"}
    elsewhere, here, other = tmp_path / "elsewhere", tmp_path / "here", tmp_path / "other"
    subprocess.run(
        [*command, "--models-dir", str(elsewhere)], check=True, cwd=REPOSITORY, env=env, timeout=240
    )
    local_model.build("micro", seed=7, models_dir=here)
    local_model.build("micro", seed=8, models_dir=other)
    assert made(elsewhere) == made(here)
    assert made(other)["model.safetensors"] != made(here)["model.safetensors"]
    assert made(other)["tokenizer.json"] == made(here)["tokenizer.json"]


def test_greedy_output_differs_between_prompts(micro_model: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(micro_model, dtype=torch.float32)
    assert not model.config.tie_word_embeddings
    prompts = torch.randint(3, 100, (8, 12), generator=torch.Generator().manual_seed(1))
    outputs = model.generate(
        prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=8, min_new_tokens=8,
        do_sample=False,
    )[:, 12:]  # fmt: skip
    assert len({tuple(row.tolist()) for row in outputs}) == len(prompts)
    assert max(len(set(row.tolist())) for row in outputs) > 2, "a model that only repeats a token"


def test_a_finished_model_is_not_made_again(micro_model: Path) -> None:
    before = (micro_model / "model.safetensors").stat()
    assert local_model.build("micro") == micro_model
    assert (micro_model / "model.safetensors").stat() == before


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "model.safetensors").unlink(),
        lambda folder: (folder / "lab3_model.json").write_text("{"),
        lambda folder: (folder / "lab3_model.json").write_text(json.dumps({"seed": 99})),
    ],
    ids=["file missing", "manifest cut", "another seed"],
)
def test_an_incomplete_model_is_made_again(tmp_path: Path, damage) -> None:
    folder = local_model.build("micro", models_dir=tmp_path)
    whole = {p.name: p.read_bytes() for p in folder.iterdir()}
    damage(folder)
    local_model.build("micro", models_dir=tmp_path)
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == whole
    assert [p.name for p in tmp_path.iterdir()] == ["micro"], "scratch folders left"


def test_a_crash_while_saving_leaves_nothing_under_the_name(tmp_path: Path, monkeypatch) -> None:
    def crash(folder: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(local_model, "_save_tokenizer", crash)
    with pytest.raises(KeyboardInterrupt):
        local_model.build("micro", models_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_two_builders_can_meet(tmp_path: Path, monkeypatch) -> None:
    """A second builder starts and finishes while the first one still saves."""
    save_tokenizer = local_model._save_tokenizer

    def meanwhile(folder: Path) -> None:
        monkeypatch.setattr(local_model, "_save_tokenizer", save_tokenizer)
        local_model.build("micro", models_dir=tmp_path)
        save_tokenizer(folder)

    monkeypatch.setattr(local_model, "_save_tokenizer", meanwhile)
    folder = local_model.build("micro", models_dir=tmp_path)
    whole = {p.name for p in folder.iterdir()}
    assert {"model.safetensors", "config.json", "tokenizer.json", "lab3_model.json"} <= whole
    assert [p.name for p in tmp_path.iterdir()] == ["micro"]


@pytest.mark.parametrize("whole", [True, False])
def test_a_name_taken_at_the_last_moment_is_used_only_if_whole(
    tmp_path: Path, monkeypatch, whole: bool
) -> None:
    """The other builder's folder appears between our look and our rename."""
    rename = Path.rename

    def taken(source: Path, target: Path) -> Path:
        if source.name == "made":
            monkeypatch.setattr(Path, "rename", rename)
            if whole:
                local_model.build("micro", models_dir=tmp_path)
            else:
                target.mkdir()
                (target / "stray").touch()
        return rename(source, target)

    monkeypatch.setattr(Path, "rename", taken)
    if whole:
        assert (local_model.build("micro", models_dir=tmp_path) / "config.json").exists()
    else:
        with pytest.raises(OSError, match="not empty"):
            local_model.build("micro", models_dir=tmp_path)


def test_names_that_do_not_exist_are_refused_in_one_line(capsys) -> None:
    assert local_model.main(["tini"]) == 2
    assert capsys.readouterr().err == "error: no local model 'tini'; known: micro, m2, m3, tiny\n"
    assert local_model.main(["micro", "--dtype", "int4"]) == 2
    assert "known: bfloat16, float32" in capsys.readouterr().err


def test_resolve_leaves_other_models_alone(micro_model: Path, monkeypatch) -> None:
    assert local_model.resolve("Qwen/Qwen3-0.6B") == "Qwen/Qwen3-0.6B"
    monkeypatch.chdir(REPOSITORY)
    assert local_model.resolve("local:micro") == "models/micro"
    monkeypatch.chdir("/")
    assert Path("/", local_model.resolve("local:micro")) == micro_model

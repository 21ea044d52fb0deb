"""Prompts: lengths, seeds, no special tokens, ShareGPT files and what is wrong with them."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from lab3 import local_model
from lab3.task1.prompts import make_prompts, plain_tokens, read_sharegpt

CHAT = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<answer>{% endif %}"
)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return local_model.build("micro", models_dir=tmp_path_factory.mktemp("models"))


@pytest.fixture
def tokenizer(model_dir: Path) -> Any:
    return AutoTokenizer.from_pretrained(model_dir)


@pytest.fixture
def chat_tokenizer(tokenizer: Any) -> Any:
    tokenizer.chat_template = CHAT
    return tokenizer


def test_lengths_cover_the_range_and_depend_on_the_seed_only(tokenizer: Any) -> None:
    prompts = make_prompts(tokenizer, "vocab", 400, (128, 512), seed=1)
    lens = [len(p) for p in prompts]
    assert min(lens) >= 128
    assert max(lens) <= 512
    assert min(lens) < 140
    assert max(lens) > 500
    assert prompts == make_prompts(tokenizer, "vocab", 400, (128, 512), seed=1)
    assert prompts != make_prompts(tokenizer, "vocab", 400, (128, 512), seed=2)


def test_the_same_ids_in_another_process(model_dir: Path, tokenizer: Any) -> None:
    """``get_vocab()`` changes its order between processes."""
    code = (
        "import sys, json; from transformers import AutoTokenizer;"
        "from lab3.task1.prompts import make_prompts;"
        "t = AutoTokenizer.from_pretrained(sys.argv[1]);"
        "print(json.dumps(make_prompts(t, 'vocab', 3, (5, 9), 7)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(model_dir)], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == make_prompts(tokenizer, "vocab", 3, (5, 9), 7)


def test_no_special_token_is_drawn(tokenizer: Any) -> None:
    drawn = {t for p in make_prompts(tokenizer, "vocab", 50, (200, 300), 0) for t in p}
    assert not drawn & set(tokenizer.all_special_ids)
    assert drawn == set(plain_tokens(tokenizer))


def test_text_prompts_have_the_lengths_asked_for(chat_tokenizer: Any) -> None:
    prompts = make_prompts(chat_tokenizer, "auto", 20, (250, 400), seed=3)
    plain = make_prompts(chat_tokenizer, "vocab", 20, (250, 400), seed=3)
    assert [len(p) for p in prompts] == [len(p) for p in plain]
    text = chat_tokenizer.decode(prompts[0])
    assert text.startswith("<user>")
    assert text.endswith("<answer>")
    assert len({tuple(p) for p in prompts}) == 20


def test_text_without_room_or_without_a_chat_template(chat_tokenizer: Any) -> None:
    with pytest.raises(ValueError, match="too few for a chat prompt"):
        make_prompts(chat_tokenizer, "text", 1, (10, 10), 0)
    chat_tokenizer.chat_template = None
    with pytest.raises(ValueError, match="no chat template"):
        make_prompts(chat_tokenizer, "text", 1, (300, 300), 0)


def sharegpt(tmp_path: Path, lengths: list[int]) -> Path:
    turns = [
        {
            "id": str(i),
            "conversations": [
                {"from": "system", "value": "not this one"},
                {"from": "human", "value": "ab"[i % 2] * length},
                {"from": "gpt", "value": "nor this one"},
            ],
        }
        for i, length in enumerate(lengths)
    ]
    path = tmp_path / "sharegpt.json"
    path.write_text(json.dumps([*turns, {"id": "empty", "conversations": []}, "no object"]))
    return path


def test_sharegpt_takes_first_questions_of_the_right_length(tmp_path: Path, tokenizer: Any) -> None:
    path = sharegpt(tmp_path, [5, 20, 30, 500, 25, 7])
    prompts = read_sharegpt(path, tokenizer, 3, (10, 100), seed=0)
    assert sorted(map(len, prompts)) == [20, 25, 30]
    assert {tokenizer.decode(p)[0] for p in prompts} <= {"a", "b"}
    assert prompts == read_sharegpt(path, tokenizer, 3, (10, 100), seed=0)


def test_sharegpt_cuts_long_questions_when_it_must(tmp_path: Path, tokenizer: Any) -> None:
    path = sharegpt(tmp_path, [20, 500, 500, 5])
    prompts = read_sharegpt(path, tokenizer, 3, (10, 100), seed=0)
    assert len(prompts) == 3
    assert all(10 <= len(p) <= 100 for p in prompts)
    with pytest.raises(ValueError, match="only 3 questions of 10 tokens or more, 4 are needed"):
        read_sharegpt(path, tokenizer, 4, (10, 100), seed=0)


@pytest.mark.parametrize(
    ("content", "message"),
    [("", "is not JSON"), ('{"a": 1}\n{"a": 2}', "is not JSON"), ('{"a": 1}', "must be a list")],
)
def test_files_that_are_no_sharegpt(
    tmp_path: Path, tokenizer: Any, content: str, message: str
) -> None:
    path = tmp_path / "other.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=message):
        read_sharegpt(path, tokenizer, 1, (1, 9), 0)
    with pytest.raises(ValueError, match="cannot read"):
        read_sharegpt(tmp_path / "absent.json", tokenizer, 1, (1, 9), 0)

"""The prompts of Task 1 as token ids: the same ids for every plan, the same for the same seed.

Three sources: random tokens of the vocabulary, readable notes with a question in the model's chat
format, or the first questions of a ShareGPT file.
"""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab3.task1 import notes

SOURCES = ("auto", "vocab", "text")


def make_prompts(
    tokenizer: Any, source: str, count: int, lengths: tuple[int, int], seed: int
) -> list[list[int]]:
    """``count`` prompts whose lengths are uniform in ``lengths`` (shortest, longest; tokens).

    ``source`` "auto" is text where the tokenizer has a chat template, else vocabulary. The two
    share the lengths of one seed. Raises ValueError with one line if the source cannot give them.
    """
    source = resolve_source(tokenizer, source)
    rng = random.Random(seed)
    wanted = [rng.randint(*lengths) for _ in range(count)]
    if source == "text":
        return [_text_prompt(tokenizer, length, rng) for length in wanted]
    vocabulary = plain_tokens(tokenizer)
    return [rng.choices(vocabulary, k=length) for length in wanted]


def resolve_source(tokenizer: Any, source: str) -> str:
    """What "auto" means for this tokenizer; raises ValueError where "text" is impossible."""
    has_chat = bool(getattr(tokenizer, "chat_template", None))
    if source == "auto":
        return "text" if has_chat else "vocab"
    if source == "text" and not has_chat:
        raise ValueError("this model's tokenizer has no chat template: use --prompts vocab")
    return source


def plain_tokens(tokenizer: Any) -> list[int]:
    """Sorted ids of all tokens that are no special or added ones.

    Sorted, because ``get_vocab()`` comes in another order in every process.
    """
    special = set(tokenizer.all_special_ids) | set(tokenizer.get_added_vocab().values())
    return sorted(set(tokenizer.get_vocab().values()) - special)


def _text_prompt(tokenizer: Any, length: int, rng: random.Random) -> list[int]:
    """Exactly ``length`` tokens: chat format, as many notes as fit, a question about them."""
    text, question = notes.notes_and_question(rng)
    slot = "\x01"
    message = {"role": "user", "content": f"{question}\n\nNotes:{slot}"}
    chat = tokenizer.apply_chat_template(
        [message], tokenize=False, add_generation_prompt=True, enable_thinking=False
    )
    before, _, after = chat.partition(slot)
    head = tokenizer.encode(before, add_special_tokens=False)
    tail = tokenizer.encode(after, add_special_tokens=False)
    room = length - len(head) - len(tail)
    if room < 1:
        raise ValueError(
            f"{length} tokens are too few for a chat prompt: raise --min-input-len or use "
            "--prompts vocab"
        )
    body: list[int] = []
    while len(body) < room:
        body += tokenizer.encode(text, add_special_tokens=False)
        text = notes.more_notes(rng)
    return head + body[:room] + tail


def read_sharegpt(
    path: Path, tokenizer: Any, count: int, lengths: tuple[int, int], seed: int
) -> list[list[int]]:
    """The first question of ``count`` random conversations, in the order they were drawn.

    Questions within ``lengths`` are taken as they are; if there are too few, longer ones are cut to
    a random length. Raises ValueError with one line: not a ShareGPT file, or not enough questions.
    """
    questions = _first_questions(path)
    rng = random.Random(seed)
    rng.shuffle(questions)
    fitting: list[list[int]] = []
    long: list[list[int]] = []
    for question in questions:
        ids = tokenizer.encode(question, add_special_tokens=False)
        if lengths[0] <= len(ids) <= lengths[1]:
            fitting.append(ids)
        elif len(ids) > lengths[1]:
            long.append(ids)
        if len(fitting) == count:
            return fitting
    cut = [ids[: rng.randint(*lengths)] for ids in long[: count - len(fitting)]]
    if len(fitting) + len(cut) < count:
        raise ValueError(
            f"{path} has only {len(fitting) + len(cut)} questions of {lengths[0]} tokens or more, "
            f"{count} are needed: lower --num-prompts or --min-input-len"
        )
    return fitting + cut


def _first_questions(path: Path) -> list[str]:
    try:
        conversations = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    except ValueError:
        raise ValueError(f"{path} is not JSON: a ShareGPT file is one JSON list") from None
    if not isinstance(conversations, list):
        raise ValueError(f"{path} is no ShareGPT file: it must be a list of conversations")
    return [text for item in conversations if (text := _first_question(item))]


def _first_question(item: Any) -> str:
    turns: Sequence[Any] = item.get("conversations") or [] if isinstance(item, dict) else []
    for turn in turns:
        if isinstance(turn, dict) and turn.get("from") in ("human", "user"):
            return str(turn.get("value") or "")
    return ""

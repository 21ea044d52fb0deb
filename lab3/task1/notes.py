"""Readable material for prompts: shop notes and questions about them, drawn at random.

Some questions ask for a word, some for a page: with an end-of-sequence token in play the answers
have very different lengths, as those of real users have.
"""

import random

_NAMES = ("Ana", "Boris", "Chen", "Dalia", "Emil", "Farah", "Goran", "Hana", "Ivo", "Jun")
_GOODS = ("apples", "books", "candles", "chairs", "lamps", "maps", "pears", "plates", "rugs")
_TOWNS = ("Athens", "Bergen", "Lisbon", "Nanjing", "Oslo", "Prague", "Quito", "Turin", "Wuhan")
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_FACTS = (
    "On {day} {name} bought {n} {goods} in {town} and paid {price} coins.",
    "{name} sold {n} {goods} on the market of {town} on {day}.",
    "On {day} it rained in {town}, so {name} stayed at home and repaired {n} {goods}.",
    "{name} sent {n} {goods} to {town}; they arrived on {day}.",
)
_QUESTIONS = (
    "Answer with one word: who is named first in these notes?",
    "Which town is named first in these notes? Answer in one short sentence.",
    "Is the weather in the notes always dry? Answer yes or no.",
    "Summarise these notes in two sentences.",
    "Write a short story that uses these notes.",
    "Explain step by step what happened in these notes.",
    "Write a friendly letter to {name} about these notes.",
    "List every purchase in these notes.",
)


def notes_and_question(rng: random.Random) -> tuple[str, str]:
    """Some notes and a question about them."""
    return more_notes(rng), rng.choice(_QUESTIONS).format(name=rng.choice(_NAMES))


def more_notes(rng: random.Random, sentences: int = 8) -> str:
    """``sentences`` more notes, with a space in front."""
    return "".join(" " + _fact(rng) for _ in range(sentences))


def _fact(rng: random.Random) -> str:
    return rng.choice(_FACTS).format(
        name=rng.choice(_NAMES),
        goods=rng.choice(_GOODS),
        town=rng.choice(_TOWNS),
        day=rng.choice(_DAYS),
        n=rng.randint(2, 40),
        price=rng.randint(5, 300),
    )

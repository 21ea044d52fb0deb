"""What a scheduler is told about output lengths: how it is written down and computed.

    oracle,noise:0.5,missing:0.3        one source, then what distorts it, joined by commas

    oracle       the true length (live: max_tokens, the true one where EOS is ignored); the default
    constant:N   N for every request
    classes:FILE the median of the request's class (lab3/sim/predictions.py)
    history:Q    the quantile Q of recent outputs after prompts of about the same size
    noise:S      times a factor of N(1, S), as DLA's authors: sigma = S x L
    bias:B       then times B
    missing:M    a share M of the requests has no prediction
    liars:L      a share L of the requests claims 1 token, whatever the rest says

"none" predicts nothing. The simulator (lab3/sim/predictions.py) and the predictor in front of a
live server (lab3/predictor.py) both read and compute it here. Nothing here imports vLLM.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

HISTORY_WINDOW = 200
"""So many of the last finished requests make the history quantile."""

HISTORY_MIN_CLASS = 20
"""With fewer finished requests of a prompt's own size class all classes count."""

LIE_TOKENS = 1


def _at_least(low: float, most: float = math.inf) -> Callable[[str, str], float]:
    def read(name: str, text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not low <= value <= most or math.isinf(value):
            raise ValueError(
                f"prediction {name} must be a number of {low:g} or more"
                if math.isinf(most)
                else f"prediction {name} must be a number of {low:g} to {most:g}"
            )
        return value

    return read


_READERS: dict[str, Callable[[str, str], Any]] = {
    "constant": _at_least(1),
    "classes": lambda _, text: text,
    "history": _at_least(0, 1),
    "noise": _at_least(0),
    "bias": _at_least(0),
    "missing": _at_least(0, 1),
    "liars": _at_least(0, 1),
}
_SOURCES = ("oracle", "constant", "classes", "history")
KNOWN = (
    "none, oracle, constant:N, classes:FILE, history:Q, noise:S, bias:B, missing:M, liars:L, "
    "joined by commas"
)


@dataclass(frozen=True)
class Specification:
    """A parsed specification; None stands for a part that it does not have."""

    text: str = "none"
    constant: float | None = None
    classes: str | None = None
    history: float | None = None
    noise: float | None = None
    bias: float | None = None
    missing: float | None = None
    liars: float | None = None

    @classmethod
    def parse(cls, text: str) -> Specification:
        """Raises ValueError in one line for a specification with a mistake in it."""
        text = text.strip() or "none"
        if text == "none":
            return cls()
        names: list[str] = []
        values: dict[str, Any] = {}
        for part in text.split(","):
            name, colon, value = part.strip().partition(":")
            if name not in ("oracle", *_READERS) or bool(colon) == (name == "oracle"):
                raise ValueError(f"unknown prediction {part.strip()!r}; known: {KNOWN}")
            if name in names:
                raise ValueError(f"prediction {name} is given twice")
            names.append(name)
            if name != "oracle":
                values[name] = _READERS[name](name, value)
        sources = [name for name in names if name in _SOURCES]
        if len(sources) > 1:
            raise ValueError(f"give one source of predictions, not {' and '.join(sources)}")
        return cls(text=",".join(part.strip() for part in text.split(",")), **values)

    @property
    def is_none(self) -> bool:
        """Whether nothing is predicted at all."""
        return self.text == "none"

    def distorted(self, lengths: Sequence[float], rng: np.random.Generator) -> list[int | None]:
        """Predictions (tokens) made of ``lengths`` by all parts but the source.

        A length of NaN, one that the source does not know, becomes None.
        """
        values = np.asarray(lengths, dtype=float)
        if self.noise is not None:
            values = values * (1.0 + self.noise * rng.standard_normal(len(values)))
        if self.bias is not None:
            values = values * self.bias
        whole = np.maximum(np.rint(np.nan_to_num(values, nan=1.0)), 1)
        tokens = [None if np.isnan(v) else int(n) for v, n in zip(values, whole, strict=True)]
        if self.missing is not None:
            lost = rng.random(len(tokens)) < self.missing
            tokens = [None if gone else n for gone, n in zip(lost, tokens, strict=True)]
        if self.liars is not None:
            lies = rng.random(len(tokens)) < self.liars
            tokens = [LIE_TOKENS if lie else n for lie, n in zip(lies, tokens, strict=True)]
        return tokens


class History:
    """Output lengths of the last finished requests, by the size of their prompts.

    A size class reaches from one power of two to the next. The size may be in tokens or in
    characters, as long as it is always the same.
    """

    def __init__(self, quantile: float) -> None:
        self._quantile = quantile
        self._all: deque[int] = deque(maxlen=HISTORY_WINDOW)
        self._classes: dict[int, deque[int]] = defaultdict(lambda: deque(maxlen=HISTORY_WINDOW))

    def add(self, prompt_size: int, output_tokens: int) -> None:
        """A request has ended after ``output_tokens``."""
        self._all.append(output_tokens)
        self._classes[prompt_size.bit_length()].append(output_tokens)

    def predict(self, prompt_size: int) -> float:
        """Tokens; NaN while no request has ended."""
        own = self._classes.get(prompt_size.bit_length(), ())
        known = own if len(own) >= HISTORY_MIN_CLASS else self._all
        return float(np.quantile(known, self._quantile)) if known else math.nan

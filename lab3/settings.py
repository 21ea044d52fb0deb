"""A scheduler's settings: the ``lab3`` part of ``--additional-config``, parsed and checked.

    vllm serve MODEL --scheduler-cls my_scheduler.SJFScheduler \\
        --additional-config '{"lab3": {"aging_tokens_per_s": 50}}'

Nothing here imports vLLM, so that a launcher can refuse a typo in a second instead of after the
model has loaded.
"""

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, Self, get_args, get_origin, get_type_hints


@dataclass(frozen=True)
class Settings:
    """What every scheduler of this repository understands.

    ``disabled``: true gives upstream vLLM's scheduling, whatever class was asked for.
    ``record``: file that receives one JSON line per engine step; empty records nothing.
    """

    disabled: bool = False
    record: str = ""

    @classmethod
    def parse(cls, raw: Any, owner: str = "") -> Self:
        """Settings from the decoded JSON ``raw``; raises ValueError with one clear line."""
        who = f" of {owner}" if owner else ""
        if raw is None:
            raw = {}
        if not isinstance(raw, Mapping):
            raise ValueError(f'lab3 settings{who} must be an object like {{"key": 1}}, not {raw!r}')
        known = {field.name for field in fields(cls)}
        for key in raw:
            if key not in known:
                close = difflib.get_close_matches(str(key), known, n=1)
                hint = f"did you mean {close[0]!r}? " if close else ""
                raise ValueError(
                    f"unknown lab3 setting {key!r}{who}; {hint}known: {', '.join(sorted(known))}"
                )
        hints = get_type_hints(cls)
        try:
            return cls(**{key: _convert(key, raw[key], hints[key]) for key in raw})
        except ValueError as error:
            raise ValueError(f"lab3 setting{who}: {error}") from None


def _convert(key: str, value: Any, kind: Any) -> Any:
    """``value`` as ``kind``: whole numbers become floats, nothing else is guessed."""
    if get_origin(kind) is Literal:
        if value in get_args(kind):
            return value
        raise ValueError(f"{key} must be one of {', '.join(get_args(kind))}, not {value!r}")
    if kind is float and type(value) is int:
        return float(value)
    # `type() is`, since a bool is an int to isinstance and `true` is no token count.
    if type(value) is not kind or (kind is float and not math.isfinite(value)):
        raise ValueError(f"{key} must be a {kind.__name__}, not {value!r}")
    return value


def require(condition: bool, message: str) -> None:
    """Raise ``ValueError(message)`` unless ``condition``: range checks in ``__post_init__``."""
    if not condition:
        raise ValueError(message)

"""Reads what a `vllm serve` or `vllm bench serve` command line asks for.

The command lines in task2.sh and task3.sh are the only place where a run is described; everything
else (port, scheduler class, settings, record file, load) is read back from them, so that a result
cannot claim anything that its command did not say.
"""

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DEFAULT_PORT = 8000
# Where a run was made and what it was called, not what was measured.
_NOT_MEASURED = frozenset({"port", "result-dir", "result-filename"})


def option(command: Sequence[str], name: str) -> str | None:
    """Value of ``--name``, None if it is not given; the last one counts, as for argparse.

    Reads ``--name value`` and ``--name=value``, with dashes or underscores.
    """
    value = None
    for position, word in enumerate(command):
        key, equals, attached = word.partition("=")
        if not key.startswith("--") or _dashed(key[2:]) != name:
            continue
        if equals:
            value = attached
        elif position + 1 < len(command):
            value = command[position + 1]
    return value


def number(command: Sequence[str], name: str) -> int | float | None:
    """Value of ``--name`` as a number (``inf`` is one); raises ValueError if it is not one."""
    text = option(command, name)
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"--{name} must be a number, not {text!r}") from None


def assignments(command: Sequence[str]) -> dict[str, str]:
    """Environment variables that a command of the form ``env KEY=VALUE... PROGRAM`` sets."""
    if not command or command[0] != "env":
        return {}
    pairs = itertools.takewhile(lambda word: "=" in word, command[1:])
    return {key: value for key, _, value in (word.partition("=") for word in pairs)}


@dataclass(frozen=True)
class ServeCommand:
    """What a ``vllm serve`` command line asks for.

    ``record``: the recorder's file, None without one. ``settings``: the scheduler's other ``lab3``
    settings.
    """

    words: tuple[str, ...]
    port: int
    scheduler_cls: str | None
    settings: dict[str, Any]
    record: Path | None

    @property
    def url(self) -> str:
        """Where the runner and the bench reach the server: always this machine."""
        return f"http://127.0.0.1:{self.port}"

    @classmethod
    def read(cls, words: Sequence[str]) -> "ServeCommand":
        """Raises ValueError with one clear line when the command line makes no sense."""
        port = number(words, "port")
        if port is not None and not (isinstance(port, int) and 0 < port < 65536):
            raise ValueError(f"--port must be between 1 and 65535, not {port}")
        settings = dict(_lab3_config(words))
        record = settings.pop("record", None)
        return cls(
            words=tuple(words),
            port=DEFAULT_PORT if port is None else port,
            scheduler_cls=option(words, "scheduler-cls"),
            settings=settings,
            record=Path(record) if record else None,
        )

    def comparable(self) -> list[str]:
        """The words that decide what is measured: without port and record file."""
        words = _measured(self.words)
        if self.record is None:
            return words
        text = option(words, "additional-config") or "{}"
        config = json.loads(text)
        del config["lab3"]["record"]
        return [word.replace(text, json.dumps(config)) for word in words]


@dataclass(frozen=True)
class BenchCommand:
    """What a ``vllm bench serve`` command line asks for."""

    words: tuple[str, ...]
    asked: dict[str, int | None]
    request_rate: float | None

    @classmethod
    def read(cls, words: Sequence[str]) -> "BenchCommand":
        """Raises ValueError with one clear line when the command line makes no sense."""
        rate = number(words, "request-rate")
        varied = option(words, "random-range-ratio") not in (None, "0", "0.0")
        is_random = option(words, "dataset-name") == "random"
        return cls(
            words=tuple(words),
            asked={
                "input_tokens": _length(words, "random-input-len") if is_random else None,
                "output_tokens": _length(words, "random-output-len") if is_random else None,
                "num_prompts": _length(words, "num-prompts"),
            }
            # Lengths drawn around the one asked for: no single number to hold answers against.
            | ({"input_tokens": None, "output_tokens": None} if varied else {}),
            request_rate=None if rate is None else float(rate),
        )

    def saving_to(self, folder: Path, filename: str) -> list[str]:
        """The full command line, with the file that receives the result."""
        return [*self.words, "--result-dir", str(folder), "--result-filename", filename]

    def comparable(self) -> list[str]:
        """The words that decide what is measured: without port and result file."""
        return _measured(self.words)

    @property
    def load(self) -> str:
        """The load in words, for progress lines."""
        prompts = self.asked["num_prompts"]
        rate = self.request_rate
        at_rate = "all at once" if rate in (None, float("inf")) else f"at {rate:g}/s"
        return f"{prompts if prompts is not None else 'all'} requests {at_rate}"


def point(serve: ServeCommand, bench: BenchCommand) -> dict[str, int | float | str]:
    """The values that a sweep may vary, by option name with underscores."""
    found: dict[str, int | float | str] = {}
    for name in ("max-num-batched-tokens", "max-num-seqs"):
        if (value := number(serve.words, name)) is not None:
            found[name.replace("-", "_")] = value
    if bench.request_rate is not None:
        # JSON has no infinity; vLLM's own result file writes the word as well.
        rate = bench.request_rate
        found["request_rate"] = "inf" if rate == float("inf") else rate
    return found


def _length(words: Sequence[str], name: str) -> int | None:
    value = number(words, name)
    return None if value is None else int(value)


def _lab3_config(words: Sequence[str]) -> dict[str, Any]:
    text = option(words, "additional-config")
    if text is None:
        return {}
    try:
        config = json.loads(text)
    except ValueError as error:
        raise ValueError(f"--additional-config is not JSON ({error}): {text}") from None
    lab3 = config.get("lab3", {}) if isinstance(config, dict) else None
    if not isinstance(lab3, dict):
        raise ValueError(f'--additional-config must look like {{"lab3": {{...}}}}, not {text}')
    return lab3


def _measured(words: Sequence[str]) -> list[str]:
    kept: list[str] = []
    skip_value = False
    for word in words:
        if skip_value:
            skip_value = False
            continue
        key, equals, _ = word.partition("=")
        if key.startswith("--") and _dashed(key[2:]) in _NOT_MEASURED:
            skip_value = not equals
            continue
        kept.append(word)
    return kept


def _dashed(name: str) -> str:
    return name.replace("_", "-")

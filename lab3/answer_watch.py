"""Counts the output tokens of an answer while it passes by, for a predictor that learns."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]

MAX_KEPT_BYTES = 8 * 2**20
_STREAM, _JSON = b"text/event-stream", b"application/json"
_END, _USAGE, _CHOICES, _ERROR = b"data: [DONE]", b'"usage":{', b'"choices":[{', b'data: {"error"'


class AnswerWatch:
    """One answer. ``output_tokens`` is None until it has ended well.

    The number is the server's own ("usage"). A stream without one is counted by its chunks, which
    is the number of tokens as long as each chunk carries one. Several choices count with their
    mean.
    """

    def __init__(self, request: Mapping[str, Any]) -> None:
        self.output_tokens: int | None = None
        self._choices = _number_of_choices(request)
        self._kind = b""
        self._kept = b""
        self._usage: int | None = None
        self._chunks = 0
        self._failed = False

    def watching(self, send: Send) -> Send:
        """``send`` that looks at each message after it has been sent, unchanged."""

        async def watched(message: Message) -> None:
            await send(message)
            if message["type"] == "http.response.start":
                self._begin(message)
            elif message["type"] == "http.response.body" and not self._failed:
                self._see(message.get("body", b""), message.get("more_body", False))

        return watched

    def _begin(self, message: Message) -> None:
        headers = {key.lower(): value for key, value in message.get("headers", ())}
        self._kind = headers.get(b"content-type", b"").partition(b";")[0].strip()
        self._failed = message["status"] != 200 or self._kind not in (_STREAM, _JSON)

    def _see(self, body: bytes, more: bool) -> None:
        self._kept += body
        if self._kind == _STREAM:
            *events, self._kept = self._kept.split(b"\n\n")
            for event in events:
                self._event(event)
        elif not more:
            self._finish(_completion_tokens(self._kept))
        self._failed |= len(self._kept) > MAX_KEPT_BYTES

    def _event(self, event: bytes) -> None:
        if event.startswith(_END):
            self._finish(self._chunks if self._usage is None else self._usage)
        elif event.startswith(_ERROR):
            self._failed = True
        else:
            self._chunks += _CHOICES in event
            if _USAGE in event:
                self._usage = _completion_tokens(event.removeprefix(b"data: "))

    def _finish(self, tokens: int | None) -> None:
        if tokens and not self._failed:
            self.output_tokens = max(round(tokens / self._choices), 1)


def _number_of_choices(request: Mapping[str, Any]) -> int:
    n, prompt = request.get("n"), request.get("prompt")
    answers = n if isinstance(n, int) and n > 0 else 1
    several = isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list)
    return answers * (len(prompt) if several else 1)


def _completion_tokens(content: bytes) -> int | None:
    try:
        tokens = json.loads(content)["usage"]["completion_tokens"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return tokens if isinstance(tokens, int) else None

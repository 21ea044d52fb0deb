"""Puts a predicted output length into each request that reaches a live vLLM server.

    LAB3_PREDICTOR=oracle,noise:0.5 vllm serve MODEL --middleware lab3.predictor.PredictLength \\
        --scheduler-cls my_scheduler.DLAScheduler

An ASGI middleware in front of /v1/completions and /v1/chat/completions. A body without
``vllm_xargs.predicted_length`` gets one, as LAB3_PREDICTOR says (see lab3/predictors.py; not set or
"none": nothing is added). What a client sent is left alone; if it is malformed the client gets HTTP
400. A body that is not a JSON object, is larger than MAX_BODY_BYTES or has another content type
goes on byte for byte: vLLM answers it. Answers pass chunk by chunk; "history" learns from them.

The prompt's size is taken in characters, or in tokens where the client sends token ids. Predictions
that are random are drawn from the request's content: the same request gets the same one every time.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

import numpy as np
from prometheus_client import Counter

from lab3.answer_watch import AnswerWatch
from lab3.policy.prediction import parse_prediction
from lab3.predictors import History, Specification

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

VARIABLE = "LAB3_PREDICTOR"
PATHS = ("/v1/completions", "/v1/chat/completions")
MAX_BODY_BYTES = 8 * 2**20
VLLM_DEFAULT_MAX_TOKENS = 16  # of /v1/completions, when the body names none

REQUESTS = Counter(
    "lab3:predictor_requests",
    "Requests by what the predictor did: added, sent (by the client), none, refused, passed on",
    ["outcome"],
)

# Below vLLM's logger, whose handler prints it.
logger = logging.getLogger("vllm.lab3.predictor")


def read_variable(environ: Mapping[str, str] = os.environ) -> Specification:
    """LAB3_PREDICTOR as a specification; raises ValueError in one line that names it."""
    try:
        specification = Specification.parse(environ.get(VARIABLE, ""))
    except ValueError as error:
        raise ValueError(f"{VARIABLE}: {error}") from None
    if specification.classes is not None:
        raise ValueError(f"{VARIABLE}: classes:FILE needs prompt lengths in tokens: simulate it")
    return specification


class Predictor:
    """Predicts from the body of a request, and learns from finished answers."""

    def __init__(self, specification: Specification) -> None:
        self.specification = specification
        quantile = specification.history
        self._history = None if quantile is None else History(quantile)

    @property
    def learns(self) -> bool:
        """Whether answers have to be watched."""
        return self._history is not None

    def predict(self, body: Mapping[str, Any], is_chat: bool) -> int | None:
        """Output tokens, None without a prediction. Never raises: vLLM judges the body."""
        if self.specification.is_none:
            return None
        max_tokens = asked_tokens(body, is_chat)
        if self._history is not None:
            length = self._history.predict(prompt_size(body))
        elif self.specification.constant is not None:
            length = self.specification.constant
        else:
            length = float("nan") if max_tokens is None else max_tokens
        content = [body.get("messages" if is_chat else "prompt"), max_tokens]
        digest = hashlib.blake2b(json.dumps(content).encode(), digest_size=8).digest()
        rng = np.random.default_rng(int.from_bytes(digest))
        return self.specification.distorted([length], rng)[0]

    def learn(self, body: Mapping[str, Any], output_tokens: int) -> None:
        """The request ``body`` has been answered with so many tokens a choice."""
        if self._history is not None:
            self._history.add(prompt_size(body), output_tokens)


def asked_tokens(body: Mapping[str, Any], is_chat: bool) -> int | None:
    """``max_tokens`` as vLLM reads it; None where the model's length decides, or for nonsense."""
    value = body.get("max_tokens", None if is_chat else VLLM_DEFAULT_MAX_TOKENS)
    if is_chat and body.get("max_completion_tokens") is not None:
        value = body["max_completion_tokens"]
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**31
    return value if is_count else None


def prompt_size(body: Mapping[str, Any]) -> int:
    """Characters or token ids of the prompt, the mean of several; 0 for nonsense."""
    if "messages" in body:
        return _text_size(body["messages"])
    prompt = body.get("prompt")
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
        return sum(len(one) for one in prompt if isinstance(one, str | list)) // len(prompt)
    return len(prompt) if isinstance(prompt, str | list) else 0


def _text_size(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, list):
        return sum(map(_text_size, value))
    return _text_size(value.get("content", value.get("text"))) if isinstance(value, dict) else 0


class PredictLength:
    """The middleware; see the top of this file. ``predictor`` defaults to LAB3_PREDICTOR's."""

    def __init__(self, app: App, predictor: Predictor | None = None) -> None:
        self.app = app
        self.predictor = predictor or Predictor(_CONFIGURED)
        logger.info("lab3 predictor: %s", self.predictor.specification.text)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """One connection, as ASGI has it."""
        if not _is_ours(scope):
            return await self.app(scope, receive, send)
        messages, content = await _read_body(scope, receive)
        body = None if content is None else _json_object(content)
        xargs = None if body is None else body.get("vllm_xargs")
        # vLLM itself refuses extra arguments that are no object.
        if body is None or not (xargs is None or isinstance(xargs, dict)):
            return await self._pass_on(scope, _replay(messages, receive), send)
        is_chat = scope["path"].endswith("/chat/completions")
        if xargs and "predicted_length" in xargs:
            if parse_prediction(xargs["predicted_length"], 1) is None:
                REQUESTS.labels("refused").inc()
                return await _refuse(send, xargs["predicted_length"])
            REQUESTS.labels("sent").inc()
        elif (predicted := self.predictor.predict(body, is_chat)) is not None:
            REQUESTS.labels("added").inc()
            body["vllm_xargs"] = {**(xargs or {}), "predicted_length": predicted}
            content = json.dumps(body).encode()
            messages = [{"type": "http.request", "body": content, "more_body": False}]
            scope = {**scope, "headers": _with_length(scope["headers"], len(content))}
        else:
            REQUESTS.labels("none").inc()
        if self.predictor.learns:
            watch = AnswerWatch(body)
            await self.app(scope, _replay(messages, receive), watch.watching(send))
            if watch.output_tokens is not None:
                self.predictor.learn(body, watch.output_tokens)
            return None
        return await self.app(scope, _replay(messages, receive), send)

    async def _pass_on(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        REQUESTS.labels("passed").inc()
        await self.app(scope, receive, send)


def _is_ours(scope: Mapping[str, Any]) -> bool:
    if scope["type"] != "http" or scope["method"] != "POST":
        return False
    if scope["path"].removeprefix(scope.get("root_path", "")) not in PATHS:
        return False
    kind = _header(scope, b"content-type").partition(b";")[0].strip().lower()
    return kind == b"application/json"


def _header(scope: Mapping[str, Any], name: bytes) -> bytes:
    return next((value for key, value in scope["headers"] if key.lower() == name), b"")


def _with_length(headers: list, length: int) -> list:
    gone = (b"content-length", b"transfer-encoding")
    kept = [(key, value) for key, value in headers if key.lower() not in gone]
    return [*kept, (b"content-length", str(length).encode())]


async def _read_body(
    scope: Mapping[str, Any], receive: Receive
) -> tuple[list[Message], bytes | None]:
    """The messages received and the body in them; None for one too large, or cut by its client."""
    length = _header(scope, b"content-length")
    if length.isdigit() and int(length) > MAX_BODY_BYTES:
        return [], None
    messages: list[Message] = []
    size, more = 0, True
    while more:
        message = await receive()
        messages.append(message)
        size += len(message.get("body", b""))
        if message["type"] != "http.request" or size > MAX_BODY_BYTES:
            return messages, None
        more = message.get("more_body", False)
    return messages, b"".join(message.get("body", b"") for message in messages)


def _json_object(content: bytes) -> dict[str, Any] | None:
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return body if isinstance(body, dict) else None


def _replay(messages: list[Message], receive: Receive) -> Receive:
    """A ``receive`` that gives ``messages`` again and then goes on with what comes."""
    ahead = iter(messages)

    async def again() -> Message:
        message = next(ahead, None)
        return await receive() if message is None else message

    return again


async def _refuse(send: Send, value: Any) -> None:
    """HTTP 400 in the form of vLLM's own errors."""
    shown = json.dumps(value)
    shown = shown if len(shown) <= 60 else shown[:57] + "..."
    message = f"vllm_xargs.predicted_length must be a number of 1 or more, not {shown}"
    error = {
        "message": message,
        "type": "BadRequestError",
        "param": "vllm_xargs.predicted_length",
        "code": 400,
    }
    content = json.dumps({"error": error}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(content)).encode()),
    ]
    await send({"type": "http.response.start", "status": 400, "headers": headers})
    await send({"type": "http.response.body", "body": content})


# When vLLM imports this module an error can still end the server. It makes an object of the class
# only when uvicorn starts the app, and uvicorn would go on without a word.
try:
    _CONFIGURED = read_variable()
except ValueError as _error:
    raise SystemExit(f"error: {_error}") from None

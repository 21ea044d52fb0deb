"""An ASGI app in the place of a vLLM server, and calls to it through the predictor.

It notes what reaches it and answers with the messages it was given. No vLLM is needed.
"""

import asyncio
import json
from typing import Any

from lab3.predictor import PredictLength, Predictor
from lab3.predictors import Specification

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
JSON = [(b"content-type", b"application/json")]
VALID = {"prompt": "a", "max_tokens": 5}


class Server:
    """An ASGI app: keeps the scope and body it got, answers with ``messages``."""

    def __init__(self, messages: list[dict] | None = None) -> None:
        self.messages = messages or answer({"usage": {"completion_tokens": 5}})
        self.scope: dict[str, Any] = {}
        self.body = b""
        self.received: list[dict] = []

    async def __call__(self, scope, receive, send) -> None:
        self.scope, self.received = scope, []
        while True:
            message = await receive()
            self.received.append(message)
            if message["type"] != "http.request" or not message.get("more_body", False):
                break
        self.body = b"".join(m.get("body", b"") for m in self.received)
        for message in self.messages:
            await send(message)


def answer(content: Any, status: int = 200) -> list[dict]:
    return [
        {"type": "http.response.start", "status": status, "headers": JSON},
        {"type": "http.response.body", "body": json.dumps(content).encode()},
    ]


def stream(*events: str) -> list[dict]:
    """A streamed answer, one event a message."""
    start = {
        "type": "http.response.start",
        "status": 200,
        "headers": [(b"content-type", b"text/event-stream; charset=utf-8")],
    }
    bodies = [{"type": "http.response.body", "body": e.encode(), "more_body": True} for e in events]
    return [start, *bodies, {"type": "http.response.body", "body": b"", "more_body": False}]


def token(text: str = "a") -> str:
    event = {"choices": [{"index": 0, "text": text}]}
    return f"data: {json.dumps(event, separators=(',', ':'))}\n\n"


def predictor(text: str) -> Predictor:
    return Predictor(Specification.parse(text))


def call(
    app: Any,
    body: Any = None,
    *,
    raw: bytes | None = None,
    chunks: list[bytes] | None = None,
    path: str = COMPLETIONS,
    headers: list[tuple[bytes, bytes]] = JSON,
    **scope: Any,
) -> list[dict]:
    """What one POST gets back; the body in one message, or in ``chunks``."""
    parts = chunks or [json.dumps(body).encode() if raw is None else raw]
    incoming = [
        {"type": "http.request", "body": part, "more_body": i < len(parts) - 1}
        for i, part in enumerate(parts)
    ]
    incoming.append({"type": "http.disconnect"})
    sent: list[dict] = []

    async def receive() -> dict:
        return incoming.pop(0)

    async def send(message: dict) -> None:
        sent.append(message)

    full = {"type": "http", "method": "POST", "path": path, "headers": headers, "root_path": ""}
    asyncio.run(app(full | scope, receive, send))
    return sent


def sent_on(specification: str, body: Any, **how: Any) -> dict:
    """The body that reaches the server."""
    server = Server()
    call(PredictLength(server, predictor(specification)), body, **how)
    return json.loads(server.body)

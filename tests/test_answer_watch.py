"""Answers pass the predictor unchanged, and what has ended well teaches it.

No vLLM: an ASGI app that notes what reaches it stands in for the server.
"""

import asyncio
import json

import pytest
from asgi import COMPLETIONS, JSON, VALID, Server, answer, call, predictor, stream, token

from lab3.predictor import PredictLength, prompt_size

DONE = "data: [DONE]\n\n"
STREAMED = stream(token("a"), token("b") + token("c"), token("d")[:9], token("d")[9:], DONE)


@pytest.mark.parametrize("specification", ["oracle", "history:0.5", "none"])
@pytest.mark.parametrize("messages", [STREAMED, answer({"x": 1}), answer({"error": 1}, 500)])
def test_an_answer_passes_message_by_message(specification: str, messages: list[dict]) -> None:
    sent = call(PredictLength(Server(messages), predictor(specification)), VALID)
    assert sent == messages
    assert all(a is b for a, b in zip(sent, messages, strict=True))


def test_a_chunk_is_with_the_client_before_the_next_one_is_made() -> None:
    order: list[str] = []

    async def app(scope, receive, send) -> None:
        for message in STREAMED:
            order.append("made")
            await send(message)

    async def send(_: dict) -> None:
        order.append("sent")

    async def receive() -> dict:
        return {"type": "http.request", "body": json.dumps(VALID).encode()}

    scope = {"type": "http", "method": "POST", "path": COMPLETIONS, "headers": JSON}
    asyncio.run(PredictLength(app, predictor("history:0.5"))(scope, receive, send))
    assert order == ["made", "sent"] * len(STREAMED)


def usage(tokens: int) -> str:
    return f'data: {{"choices":[],"usage":{{"prompt_tokens":3,"completion_tokens":{tokens}}}}}\n\n'


@pytest.mark.parametrize(
    ("messages", "request_body", "expected"),
    [
        (answer({"usage": {"completion_tokens": 37}}), {}, 37),
        (answer({"usage": {"completion_tokens": 40}}), {"n": 4}, 10),
        (answer({"usage": {"completion_tokens": 40}}), {"prompt": ["a", "b"]}, 20),
        (stream(token(), token(), usage(37), DONE), {}, 37),
        (stream(token() + token(), usage(8)[:20], usage(8)[20:] + DONE), {}, 8),
        (stream(token(), token(), token(), DONE), {}, 3),  # no usage: chunks
        (stream(token(), token()), {}, None),  # cut off
        (stream(token(), 'data: {"error":{"message":"x"}}\n\n', DONE), {}, None),
        (stream(token(), 'data: {"error": {"message": "x"}}\n\n', DONE), {}, None),
        (stream(token('"error": {'), DONE), {}, 1),
        (answer({"usage": {"completion_tokens": 37}}, status=500), {}, None),
        (answer({"usage": {"completion_tokens": 0}}), {}, None),
        (answer({"usage": {}}), {}, None),
        (answer([]), {}, None),
    ],
)
def test_history_learns_from_what_ended_well(messages, request_body, expected) -> None:
    learning = predictor("history:0.5")
    app = PredictLength(Server(messages), learning)
    body = VALID | request_body
    assert learning.predict(body, is_chat=False) is None
    call(app, body)
    assert learning.predict(body, is_chat=False) == expected


def test_history_predicts_by_the_size_of_the_prompt() -> None:
    learning = predictor("history:0.5")
    for size, tokens in ((8, 10), (2000, 300)):
        body = {"prompt": "x" * size}
        for _ in range(30):
            call(
                PredictLength(Server(answer({"usage": {"completion_tokens": tokens}})), learning),
                body,
            )
    assert learning.predict({"prompt": "y" * 9}, is_chat=False) == 10
    assert learning.predict({"prompt": [5] * 1500}, is_chat=False) == 300


@pytest.mark.parametrize(
    ("body", "size"),
    [
        ({"prompt": "abc"}, 3),
        ({"prompt": [1, 2]}, 2),
        ({"prompt": ["ab", "abcd"]}, 3),
        ({"prompt": [[1], [1, 2, 3]]}, 2),
        ({"messages": [{"content": "abc"}, {"content": [{"text": "de"}, {"image_url": 1}]}]}, 5),
        ({"messages": 7}, 0),
        ({"prompt": {"a": 1}}, 0),
        ({}, 0),
    ],
)
def test_prompt_sizes(body: dict, size: int) -> None:
    assert prompt_size(body) == size

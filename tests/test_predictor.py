"""The predictor in front of a server: what it adds, leaves alone and refuses.

No vLLM: an ASGI app that notes what reaches it stands in for the server.
"""

import asyncio
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from asgi import CHAT, COMPLETIONS, JSON, VALID, Server, call, predictor, sent_on
from test_processes import ROOT

from experiments import predictor_overhead
from lab3 import predictor as module
from lab3.predictor import MAX_BODY_BYTES, PredictLength, read_variable

# -- what is added --


def test_a_request_without_a_prediction_gets_one_and_keeps_everything_else() -> None:
    body = {"prompt": "abc é\ud800", "max_tokens": 40, "temperature": 0.1, "seed": 10**30}
    server = Server()
    length = [(b"Content-Length", b"5"), (b"x", b"y"), (b"Transfer-Encoding", b"chunked")]
    call(PredictLength(server, predictor("oracle")), body, headers=[*JSON, *length])
    assert json.loads(server.body) == body | {"vllm_xargs": {"predicted_length": 40}}
    assert server.scope["headers"] == [
        *(*JSON, (b"x", b"y")),
        (b"content-length", str(len(server.body)).encode()),
    ]


def test_other_extra_arguments_stay() -> None:
    xargs = {"client": "a", "list": [1, "b"]}
    sent = sent_on("constant:9", {"prompt": "a", "vllm_xargs": xargs})
    assert sent["vllm_xargs"] == xargs | {"predicted_length": 9}
    assert sent_on("constant:9", {"prompt": "a", "vllm_xargs": None})["vllm_xargs"] == {
        "predicted_length": 9
    }


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        (COMPLETIONS, {"prompt": "a", "max_tokens": 300}, 300),
        (COMPLETIONS, {"prompt": "a"}, 16),  # vLLM's default
        (COMPLETIONS, {"prompt": "a", "max_tokens": None}, None),
        (COMPLETIONS, {"prompt": "a", "max_tokens": "many"}, None),
        (COMPLETIONS, {"prompt": "a", "max_tokens": True}, None),
        (COMPLETIONS, {"prompt": "a", "max_tokens": -3}, None),
        (CHAT, {"messages": [], "max_tokens": 7}, 7),
        (CHAT, {"messages": [], "max_tokens": 7, "max_completion_tokens": 8}, 8),
        (CHAT, {"messages": []}, None),
    ],
)
def test_the_oracle_knows_what_vllm_will_make_of_max_tokens(path, body, expected) -> None:
    found = sent_on("oracle", body, path=path).get("vllm_xargs", {}).get("predicted_length")
    assert found == expected


def test_the_same_request_gets_the_same_prediction_and_others_get_others() -> None:
    def predicted(prompt: str, **more: Any) -> int:
        body = {"prompt": prompt, "max_tokens": 1000} | more
        return sent_on("noise:0.5", body)["vllm_xargs"]["predicted_length"]

    first = predicted("a")
    assert predicted("a", user="other", request_id="x1") == first
    assert len({predicted(f"prompt {i}") for i in range(20)}) > 10


def test_liars_claim_one_token() -> None:
    claims = [
        sent_on("oracle,liars:0.2", {"prompt": str(i), "max_tokens": 50})["vllm_xargs"][
            "predicted_length"
        ]
        for i in range(300)
    ]
    assert set(claims) == {1, 50}
    assert 30 <= claims.count(1) <= 90


def test_a_mounted_app_is_served_as_well() -> None:
    sent = sent_on("constant:3", {"prompt": "a"}, path="/llm/v1/completions", root_path="/llm")
    assert sent["vllm_xargs"] == {"predicted_length": 3}


# -- what is left alone, byte for byte --


@pytest.mark.parametrize("value", [1, 7, 2.5, 10**400, 1e308, 12345678901234567890])
def test_what_a_client_predicts_is_left_as_it_is(value: Any) -> None:
    raw = b'{ "vllm_xargs":{"predicted_length": %s},\n"prompt":"a" }' % json.dumps(value).encode()
    server = Server()
    call(PredictLength(server, predictor("constant:3")), raw=raw)
    assert server.body == raw


@pytest.mark.parametrize(
    "raw",
    [
        *(b"", b"{", b"not json", b"[1, 2]", b'"text"', b"null", b"\xff\xfe\x00", b'{"a": 1} x'),
        *(b"[" * 100_000, b'{"prompt": ' + b"1" * 5000 + b"}"),
        b'{"prompt": "a", "vllm_xargs": "text"}',
        b'{"prompt": "a", "vllm_xargs": [1]}',
    ],
    ids=lambda raw: repr(raw[:20]),
)
def test_broken_json_reaches_vllm_byte_for_byte(raw: bytes) -> None:
    server = Server()
    sent = call(PredictLength(server, predictor("constant:3")), raw=raw)
    assert server.body == raw
    assert sent == server.messages


@pytest.mark.parametrize(
    "how",
    [
        {"path": "/v1/embeddings"},
        {"path": "/v1/completions/render"},
        {"path": "/health"},
        {"method": "GET"},
        {"headers": [(b"content-type", b"text/plain")]},
        {"headers": []},
    ],
    ids=str,
)
def test_other_requests_are_not_even_read(how: dict[str, Any]) -> None:
    raw, server = json.dumps(VALID).encode(), Server()
    call(PredictLength(server, predictor("constant:3")), raw=raw, **how)
    assert server.body == raw


def test_a_websocket_and_a_start_up_are_none_of_its_business() -> None:
    seen = []

    async def app(scope, receive, send) -> None:
        seen.append((scope["type"], receive, send))

    for kind in ("websocket", "lifespan"):
        asyncio.run(PredictLength(app, predictor("oracle"))({"type": kind}, print, repr))
    assert seen == [("websocket", print, repr), ("lifespan", print, repr)]


def test_a_body_in_pieces_is_put_together_or_passed_on_in_the_same_pieces() -> None:
    whole = json.dumps(VALID).encode()
    server = Server()
    call(PredictLength(server, predictor("constant:3")), chunks=[whole[:4], b"", whole[4:]])
    assert json.loads(server.body) == VALID | {"vllm_xargs": {"predicted_length": 3}}
    broken = [b'{"pro', b"", b"mpt"]
    call(PredictLength(server, predictor("constant:3")), chunks=broken)
    assert [message["body"] for message in server.received] == broken


@pytest.mark.parametrize("says_so", [True, False])
def test_a_large_body_passes_in_its_own_pieces(says_so: bool) -> None:
    piece = b'{"prompt": "' + b"x" * (MAX_BODY_BYTES // 2)
    pieces = [piece, piece, piece, b'"}']
    length = [(b"content-length", str(sum(map(len, pieces))).encode())] if says_so else []
    server = Server()
    call(PredictLength(server, predictor("oracle")), chunks=pieces, headers=[*JSON, *length])
    assert [message["body"] for message in server.received] == pieces


def test_a_client_that_leaves_in_mid_body_is_reported_to_the_server() -> None:
    incoming = [
        {"type": "http.request", "body": b'{"prompt"', "more_body": True},
        {"type": "http.disconnect"},
    ]
    server, given = Server(), list(incoming)

    async def receive() -> dict:
        return given.pop(0)

    async def send(_: dict) -> None:
        pass

    scope = {"type": "http", "method": "POST", "path": COMPLETIONS, "headers": JSON}
    asyncio.run(PredictLength(server, predictor("oracle"))(scope, receive, send))
    assert server.received == incoming


def test_the_server_still_learns_that_its_client_has_left() -> None:
    seen = []

    async def app(scope, receive, send) -> None:
        seen.append(await receive())
        seen.append(await receive())

    call(PredictLength(app, predictor("oracle")), VALID)
    assert [message["type"] for message in seen] == ["http.request", "http.disconnect"]


def random_json(pick: random.Random, depth: int = 0) -> Any:
    kind = pick.randrange(8 if depth < 3 else 6)
    if kind == 6:
        return [random_json(pick, depth + 1) for _ in range(pick.randrange(4))]
    if kind == 7:
        return {random_text(pick): random_json(pick, depth + 1) for _ in range(pick.randrange(4))}
    number = pick.choice([pick.randrange(-(10**25), 10**25), pick.uniform(-1e9, 1e9), float("inf")])
    return [None, True, number, number, number, random_text(pick)][kind]


def random_text(pick: random.Random) -> str:
    return "".join(chr(pick.choice([34, 92, 0x1F600, 10, 65, 0xE9, 0])) for _ in range(6))


@pytest.mark.parametrize("seed", range(40))
def test_any_body_means_the_same_to_vllm_but_for_the_prediction(seed: int) -> None:
    pick = random.Random(seed)
    body = {random_text(pick): random_json(pick) for _ in range(5)} | VALID
    ascii_only = bool(pick.randrange(2))
    raw = json.dumps(body, ensure_ascii=ascii_only, indent=pick.choice([None, 2])).encode()
    cuts = sorted(pick.randrange(len(raw)) for _ in range(3))
    pieces = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    server = Server()
    call(PredictLength(server, predictor("constant:3")), chunks=pieces)
    assert json.loads(server.body) == body | {"vllm_xargs": {"predicted_length": 3}}
    call(PredictLength(server, predictor("none")), chunks=pieces)
    assert [message["body"] for message in server.received] == pieces


# -- what is refused --


@pytest.mark.parametrize(
    "value",
    [0, -1, 0.5, True, False, None, "12", "", [5], {"a": 1}, float("nan"), float("inf")],
    ids=repr,
)
@pytest.mark.parametrize("specification", ["none", "oracle"])
def test_a_malformed_prediction_is_an_error_of_the_client(value: Any, specification: str) -> None:
    server = Server()
    body = VALID | {"vllm_xargs": {"predicted_length": value}}
    start, content = call(PredictLength(server, predictor(specification)), body)
    assert start["status"] == 400
    assert dict(start["headers"])[b"content-type"] == b"application/json"
    assert dict(start["headers"])[b"content-length"] == str(len(content["body"])).encode()
    error = json.loads(content["body"])["error"]
    assert (error["code"], error["type"]) == (400, "BadRequestError")
    assert error["param"] == "vllm_xargs.predicted_length"
    assert error["message"] == (
        f"vllm_xargs.predicted_length must be a number of 1 or more, not {json.dumps(value)}"
    )
    assert server.scope == {}, "the engine never hears of it"


def test_a_long_value_is_not_echoed_in_full() -> None:
    body = VALID | {"vllm_xargs": {"predicted_length": "x" * 10_000}}
    _, content = call(PredictLength(Server(), predictor("none")), body)
    assert len(content["body"]) < 400


# -- counting and configuration --


def counted(do: Callable[[], Any], outcome: str) -> float:
    child = module.REQUESTS.labels(outcome)
    before = child._value.get()
    do()
    return child._value.get() - before


@pytest.mark.parametrize(
    ("outcome", "specification", "body"),
    [
        ("added", "oracle", VALID),
        ("none", "none", VALID),
        ("sent", "oracle", VALID | {"vllm_xargs": {"predicted_length": 3}}),
        ("refused", "oracle", VALID | {"vllm_xargs": {"predicted_length": "3"}}),
        ("passed", "oracle", [1]),
    ],
)
def test_every_outcome_is_counted(outcome: str, specification: str, body: Any) -> None:
    app = PredictLength(Server(), predictor(specification))
    assert counted(lambda: call(app, body), outcome) == 1


def test_the_variable_is_read_and_refused_in_one_line() -> None:
    assert read_variable({}).is_none
    assert read_variable({"LAB3_PREDICTOR": "noise:1"}).noise == 1
    with pytest.raises(ValueError, match=r"^LAB3_PREDICTOR: unknown prediction 'oracel'"):
        read_variable({"LAB3_PREDICTOR": "oracel"})
    with pytest.raises(ValueError, match=r"^LAB3_PREDICTOR: classes:FILE needs prompt lengths"):
        read_variable({"LAB3_PREDICTOR": "classes:a.json"})


def test_a_bad_variable_ends_the_server_with_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from lab3.predictor import PredictLength"],
        env=os.environ | {"LAB3_PREDICTOR": "oracel"},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: LAB3_PREDICTOR: unknown prediction 'oracel'; known:")
    assert done.stderr.count("\n") == 1


def test_its_cost_is_measured_for_every_size_and_kind(tmp_path: Path) -> None:
    assert predictor_overhead.main(["--requests", "3", "--out", str(tmp_path)]) == 0
    rows = pd.read_csv(tmp_path / "predictor.csv")
    kinds = [(row.prompt_characters, row.predictor) for row in rows.itertuples()]
    assert kinds == list(
        product(predictor_overhead.PROMPT_CHARACTERS, predictor_overhead.SPECIFICATIONS)
    )
    assert rows.added_us.notna().all()
    assert "Measured; " in (tmp_path / "predictor.md").read_text()

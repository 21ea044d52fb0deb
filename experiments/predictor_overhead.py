"""What the predictor costs a request: python -m experiments.predictor_overhead [--out DIR]

Calls an ASGI app that reads a body and streams 256 chunks, without and with the predictor in front,
for prompts of several sizes, and prints the difference of the medians in microseconds a request.
Takes turns between the cases, so that the machine's drift hits all alike. Writes predictor.csv,
predictor.md and predictor.json (versions, hardware) into --out if given.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.report import write
from lab3 import provenance
from lab3.captions import hardware_text
from lab3.predictor import PredictLength, Predictor
from lab3.predictors import Specification
from lab3.text_table import Cell, Table, to_text

SPECIFICATIONS = ("none", "oracle", "noise:0.5", "history:0.9")
PROMPT_CHARACTERS = (1_000, 10_000, 100_000)
CHUNKS = 256
EVENT = b'data: {"id":"cmpl-0","choices":[{"index":0,"text":"a","finish_reason":null}]}\n\n'
USAGE = (
    b'data: {"id":"cmpl-0","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":256}}\n\n'
)
HEADERS = [(b"content-type", b"application/json")]


async def answer(scope: Any, receive: Any, send: Any) -> None:
    """Reads the body and streams an answer as vLLM does, without computing anything."""
    while (await receive()).get("more_body"):
        pass
    headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for _ in range(CHUNKS):
        await send({"type": "http.response.body", "body": EVENT, "more_body": True})
    for last in (USAGE, b"data: [DONE]\n\n"):
        await send({"type": "http.response.body", "body": last, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def one_request_us(app: Any, body: bytes) -> float:
    """Time of one call in microseconds."""
    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": HEADERS}

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(_: dict[str, Any]) -> None:
        pass

    began = time.perf_counter()
    await app(dict(scope), receive, send)
    return 1e6 * (time.perf_counter() - began)


async def medians_us(requests: int, characters: int) -> dict[str, float]:
    """Median time of a request for the bare app ("") and each specification."""
    apps: dict[str, Any] = {"": answer}
    for text in SPECIFICATIONS:
        apps[text] = PredictLength(answer, Predictor(Specification.parse(text)))
    times: dict[str, list[float]] = {name: [] for name in apps}
    for number in range(requests):
        body = {"prompt": f"{number:09d}" + "x" * (characters - 9), "max_tokens": CHUNKS}
        content = json.dumps(body).encode()
        for name, app in apps.items():
            times[name].append(await one_request_us(app, content))
    return {name: statistics.median(values) for name, values in times.items()}


def added_table(rows: pd.DataFrame) -> Table:
    """A row for each size of prompt, a column for each predictor."""
    made = [
        (Cell(f"{characters:,}"), *(Cell(f"{value:+,.0f}") for value in own.added_us))
        for characters, own in rows.groupby("prompt_characters", sort=False)
    ]
    heads = (("prompt", "characters"), *((text, "us") for text in SPECIFICATIONS))
    return Table("What the predictor adds to a request", heads, tuple(made))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=500, help="of each case")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args(argv)
    rows = []
    for characters in PROMPT_CHARACTERS:
        found = asyncio.run(medians_us(args.requests, characters))
        for text in SPECIFICATIONS:
            added_us = found[text] - found[""]
            rows.append({"predictor": text, "prompt_characters": characters, "added_us": added_us})
    found = pd.DataFrame(rows)
    about = {"versions": provenance.versions(), "hardware": provenance.hardware()}
    note = (
        f"Measured; {hardware_text(about['hardware'])}; medians of {args.requests} requests with "
        f"an answer of {CHUNKS} chunks."
    )
    table = added_table(found)
    print(to_text(table), note, sep="\n\n")
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        found.to_csv(args.out / "predictor.csv", index=False, float_format="%.1f")
        write(args.out / "predictor.md", [table], [note])
        (args.out / "predictor.json").write_text(json.dumps(about, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

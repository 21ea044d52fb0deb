"""Reads the result file of `vllm bench serve`: what its arrays hold, and what they do not say.

The rules:

* Arrays are in send order and hold every request, failed ones too. There is no success flag, and
  the error text of a failed request may be empty: a request succeeded when it has no error text
  and a latency (vLLM sets the latency of successes only).
* Failed requests keep their row. They have no TTFT, E2E, TPOT or gaps, even when part of an
  answer came: they are counted, not averaged. Successful requests that took longer than
  `timeout_s` are counted as timed out and stay in every percentile.
* The first 10 % of the requests by send time are warm-up (`in_window` False). The window of a run
  goes from the first kept send to the end of the last kept answer. Throughput is what the kept
  requests brought, over this window. Dropped requests still in flight at its start are not
  counted, although the engine works on them; no kept request reaches over an edge.
* `itls` are gaps between chunks of the stream. Where a chunk brought several tokens, their number
  is smaller than tokens - 1, and `itl_unit` says "chunk" instead of "token".
* With `--max-concurrency` vLLM's clock starts after the client's own queue. A user waits there
  too, so `queue_times` is added to TTFT and E2E.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lab3 import metrics

WARMUP_SHARE = 0.1
_ARRAYS = ("input_lens", "output_lens", "ttfts", "itls", "start_times", "errors")


class ResultError(ValueError):
    """A result that cannot be used; the text is one line that says why and what to do."""


def read_json_objects(path: Path) -> list[dict[str, Any]]:
    """JSON objects of a file, however they are joined; ResultError when it is empty or cut."""
    if not path.exists():
        raise ResultError(f"no {path.name}: the run ended before it was written")
    text = path.read_text(encoding="utf-8", errors="replace").strip()
    if not text:
        raise ResultError(f"{path.name} is empty: the run was cut off, redo it")
    decoder, objects, position = json.JSONDecoder(), [], 0
    while position < len(text):
        try:
            value, position = decoder.raw_decode(text, position)
        except json.JSONDecodeError:
            raise ResultError(f"{path.name} is cut or not JSON: redo the run") from None
        if not isinstance(value, dict):
            raise ResultError(f"{path.name} does not hold JSON objects")
        objects.append(value)
        while position < len(text) and text[position].isspace():
            position += 1
    return objects


def read_bench(path: Path) -> list[dict[str, Any]]:
    """The results in a bench file: one, or several when it was written with --append-result.

    Raises ResultError for a missing, empty or cut file, or one without --save-detailed.
    """
    if path.name.endswith(".pytorch.json"):
        raise ResultError(f"{path.name} is vLLM's summary for PyTorch's dashboards, not a result")
    records = read_json_objects(path)
    for record in records:
        missing = [name for name in _ARRAYS if not isinstance(record.get(name), list)]
        if missing:
            raise ResultError(
                f"{path.name} has no {', '.join(missing)}: run the bench with --save-detailed"
            )
        lengths = {name: len(record[name]) for name in _ARRAYS}
        if len(set(lengths.values())) > 1:
            raise ResultError(f"{path.name} has arrays of different lengths: {lengths}")
    return records


def requests_frame(
    bench: dict[str, Any], timeout_s: float = float("inf"), warmup_share: float = WARMUP_SHARE
) -> tuple[pd.DataFrame, tuple[np.ndarray, ...]]:
    """One bench result as (a row per request, the gaps of each request in ms).

    The columns are those of `Run.requests`. Of n requests the first floor(warmup_share * n) by
    send time get in_window False.
    """
    n = len(bench["errors"])
    chunk_gaps = [np.asarray(gaps, dtype=float) * 1000 for gaps in bench["itls"]]
    ttft = np.asarray(bench["ttfts"], dtype=float) * 1000
    if "latencies" in bench:
        e2e = np.asarray(bench["latencies"], dtype=float) * 1000
    else:
        e2e = ttft + np.array([gaps.sum() for gaps in chunk_gaps])
    errors = [str(error or "") for error in bench["errors"]]
    ok = np.array([not error for error in errors], dtype=bool) & (ttft > 0) & (e2e > 0)
    queue = np.zeros(n)
    if bench.get("max_concurrency") is not None and "queue_times" in bench:
        queue = np.asarray(bench["queue_times"], dtype=float) * 1000
    sent_s = np.asarray(bench["start_times"], dtype=float)
    tokens = np.asarray(bench["output_lens"], dtype=int)
    gaps = tuple(g if good else np.empty(0) for g, good in zip(chunk_gaps, ok, strict=True))
    frame = pd.DataFrame(
        {
            "start_s": sent_s - queue / 1000,
            "input_tokens": np.asarray(bench["input_lens"], dtype=int),
            "output_tokens": tokens,
            "ttft_ms": np.where(ok, ttft + queue, np.nan),
            "e2e_ms": np.where(ok, e2e + queue, np.nan),
            "tpot_ms": np.where(ok, metrics.tpot_ms(e2e, ttft, tokens), np.nan),
            "max_gap_ms": [metrics.max_gap_ms(g) for g in gaps],
            "gap_p99_ms": [metrics.percentile(g, metrics.GOODPUT_GAP_PERCENTILE) for g in gaps],
            "queue_ms": queue,
            "error": errors,
            "ok": ok,
        }
    )
    frame["timed_out"] = ~(frame.ok & (frame.e2e_ms <= timeout_s * 1000))
    warmup = np.argsort(sent_s, kind="stable")[: int(warmup_share * n)]
    frame["in_window"] = ~np.isin(np.arange(n), warmup)
    return frame, gaps


def first_error(requests: pd.DataFrame) -> str:
    """The last line of the first error text there is; a traceback ends with what happened."""
    texts = [text for text in requests.error[~requests.ok] if text.strip()]
    return texts[0].strip().splitlines()[-1][:160] if texts else "no error text"


def result_problems(requests: pd.DataFrame, asked: dict[str, Any]) -> list[str]:
    """Why a result is not a clean measurement of what was asked for, a line each; empty if it is.

    `asked` may hold num_prompts and output_tokens (one number, or a list with one a request).
    vLLM itself reports no failure when an engine dies under a living server: answers are short.
    """
    n, failed, problems = len(requests), int((~requests.ok).sum()), []
    if failed:
        problems.append(f"{failed} of {n} requests failed ({first_error(requests)})")
    if asked.get("num_prompts") is not None and n != asked["num_prompts"]:
        problems.append(f"{n} requests in the file, {asked['num_prompts']} asked")
    wrong = requests.output_tokens[requests.ok & ~as_asked(requests, asked, "output_tokens")]
    if len(wrong):
        problems.append(
            f"{len(wrong)} of {n} answers not as long as asked ({wrong.min()}..{wrong.max()} "
            "tokens: the engine died, or prompt + answer exceed --max-model-len)"
        )
    return problems


def as_asked(requests: pd.DataFrame, asked: dict[str, Any], column: str) -> np.ndarray:
    """Which lengths are as asked. `asked` has one length, one a request, or none (all pass)."""
    lengths = asked.get(column)
    if lengths is None or (isinstance(lengths, list) and len(lengths) != len(requests)):
        return np.ones(len(requests), dtype=bool)
    return (requests[column] == lengths).to_numpy()

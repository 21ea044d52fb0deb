"""Workloads from files: traces as their publishers lay them out, JSONL of measured requests.

A trace is a CSV file, or JSON lines (.jsonl) with the same names as keys. Known columns, by name
whatever their order:

    arrival_s, input_tokens, output_tokens          this repository's own; arrival_s may be missing
    TIMESTAMP, ContextTokens, GeneratedTokens       Azure LLM inference traces (2023, 2024)
    Timestamp, Model, Request tokens, Response tokens, Total tokens, Log Type        BurstGPT
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from lab3.sim.workload import Workload


@dataclass(frozen=True)
class _Layout:
    name: str
    arrival: str
    input: str
    output: str


_LAYOUTS = (
    _Layout("trace", "arrival_s", "input_tokens", "output_tokens"),
    _Layout("Azure trace", "TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    _Layout("BurstGPT trace", "Timestamp", "Request tokens", "Response tokens"),
)


def read_trace(path: Path, limit: int | None = None) -> Workload:
    """The requests of a trace, arrivals from 0; rows without input or output are left out.

    A file without arrival times gives requests that all come at once. ``limit``: at most so many
    requests, from the start.

    Raises ValueError in one line for a missing file, unknown columns or no usable row.
    """
    path = Path(path)
    kind = "JSONL" if path.suffix == ".jsonl" else "CSV"
    try:
        frame = pd.read_json(path, lines=True) if kind == "JSONL" else pd.read_csv(path)
    except FileNotFoundError:
        raise ValueError(f"no trace {path}") from None
    except ValueError as error:
        raise ValueError(
            f"{path.name} is not a {kind} file: {str(error).splitlines()[0]}"
        ) from None
    layout = next((k for k in _LAYOUTS if {k.input, k.output} <= set(frame.columns)), None)
    if layout is None:
        raise ValueError(
            f"{path.name} has the columns {', '.join(map(str, frame.columns))}; "
            "known: arrival_s,input_tokens,output_tokens, or Azure's, or BurstGPT's"
        )
    frame = _sorted(frame, layout, path)
    usable = (frame.input_tokens >= 1) & (frame.output_tokens >= 1)
    left_out, frame = int((~usable).sum()), frame[usable]
    if frame.empty:
        raise ValueError(f"{path.name} has no row with input and output tokens")
    rows = len(frame)
    frame = frame.head(limit) if limit else frame
    notes = []
    if left_out:
        notes.append(f"{left_out} rows without input or output left out")
    if len(frame) < rows:
        notes.append(f"the first {len(frame)} of {rows} requests")
    return Workload(
        name=f"{layout.name} {path.name}",
        arrival_s=tuple((frame.arrival_s - frame.arrival_s.iloc[0]).tolist()),
        input_tokens=tuple(frame.input_tokens.astype(int).tolist()),
        output_tokens=tuple(frame.output_tokens.astype(int).tolist()),
        notes=tuple(notes),
    )


def _sorted(frame: pd.DataFrame, layout: _Layout, path: Path) -> pd.DataFrame:
    columns = {layout.input: "input_tokens", layout.output: "output_tokens"}
    tokens = frame.rename(columns=columns)[["input_tokens", "output_tokens"]]
    tokens = tokens.apply(pd.to_numeric, errors="coerce").fillna(0)
    if layout.arrival in frame:
        tokens["arrival_s"] = _seconds(frame[layout.arrival], path)
    else:
        tokens["arrival_s"] = 0.0
    return tokens.sort_values("arrival_s", kind="stable", ignore_index=True)


def _seconds(column: pd.Series, path: Path) -> np.ndarray:
    """Numbers are seconds, anything else has to be dates with times."""
    if pd.api.types.is_numeric_dtype(column):
        seconds = column.to_numpy(dtype=float)
    else:
        try:
            moments = pd.to_datetime(column, format="ISO8601", utc=True)
        except ValueError:
            raise ValueError(f"{path.name} has times that are neither seconds nor dates") from None
        seconds = (moments - moments.min()).dt.total_seconds().to_numpy()
    if np.isnan(seconds).any():
        raise ValueError(f"{path.name} has a row without an arrival time")
    return seconds


@dataclass(frozen=True)
class MeasuredRequests:
    """Requests that someone measured on a live engine: what to send, and what came out.

    ``ttft_s``, ``e2e_s``: from the moment the engine queued the request, one value each.
    """

    workload: Workload
    ttft_s: np.ndarray
    e2e_s: np.ndarray


def read_measured_requests(path: Path) -> MeasuredRequests:
    """A JSONL file with input_toks, output_toks, arrival_time and the engine's time stamps.

    Raises ValueError in one line when the file is missing or a line lacks a field.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ValueError(f"no measured requests in {path}: {error.strerror}") from None
    try:
        rows = sorted((json.loads(line) for line in lines), key=lambda row: row["arrival_time"])
        columns = {key: np.array([row[key] for row in rows], dtype=float) for key in _STAMPS}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a file of measured requests: {error!r}") from None
    arrivals_s = columns["arrival_time"] - columns["arrival_time"].min()
    return MeasuredRequests(
        Workload(
            name=f"measured requests {Path(path).name}",
            arrival_s=tuple(arrivals_s.tolist()),
            input_tokens=tuple(columns["input_toks"].astype(int).tolist()),
            output_tokens=tuple(columns["output_toks"].astype(int).tolist()),
        ),
        ttft_s=columns["first_token_ts"] - columns["queued_ts"],
        e2e_s=columns["last_token_ts"] - columns["queued_ts"],
    )


_STAMPS = (
    "input_toks",
    "output_toks",
    "arrival_time",
    "queued_ts",
    "first_token_ts",
    "last_token_ts",
)

"""The lines under every table and figure: where the numbers come from, how far to trust them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from lab3.commands import assignments
from lab3.metrics import TINY_GAP_MS
from lab3.results import RunInfo
from lab3.summary import COUNTER

TINY_GAP_WARNING = 0.05


def provenance_line(infos: Sequence[RunInfo]) -> str:
    """Hardware, versions, model, profile, load, commit and date of these runs, in one line."""
    parts = [
        _source(infos),
        *(_values(hardware_text(i.raw.get("hardware") or {}) for i in infos)),
        "vLLM " + _joined((i.raw.get("versions") or {}).get("vllm") for i in infos),
        "model " + _joined(_model(i.profile.get("MODEL")) for i in infos),
        "profile " + _joined(i.profile.get("name") for i in infos),
        _load(infos),
        "commit " + _joined(_commit(i.raw) for i in infos),
        _days(i.raw.get("started") for i in infos),
    ]
    return "; ".join(part for part in parts if part)


def fidelity_lines(summary: pd.DataFrame) -> list[str]:
    """Share of client gaps under 0.3 ms per arm, and a warning for arms above 5 %."""
    shares = {row.label: row.tiny_gap_share for row in summary.itertuples()}
    known = {label: share for label, share in shares.items() if not math.isnan(share)}
    if not known:
        return []
    text = ", ".join(f"{label} {share:.1%}" for label, share in known.items())
    lines = [f"Client fidelity, share of ITLs under {TINY_GAP_MS} ms: {text}."]
    bad = [label for label, share in known.items() if share > TINY_GAP_WARNING]
    if bad:
        lines.append(
            f"WARNING: above {TINY_GAP_WARNING:.0%} for {', '.join(bad)}: with server and client "
            "on two busy cores, the client reads several chunks at once, and its ITL P50 comes "
            "out too low. Trust the engine's ITL there, or lower the load."
        )
    chunked = [row.label for row in summary.itertuples() if row.itl_unit == "chunk"]
    if chunked:
        lines.append(
            f"Client ITL is per chunk, not per token, for {', '.join(chunked)}: "
            "some chunks of the stream carried several tokens."
        )
    return lines


def counter_lines(summary: pd.DataFrame) -> list[str]:
    """The policies' own counters at the end of a run, medians over the repeats, a line an arm."""
    lines = []
    for _, row in summary.iterrows():
        names = [n for n in row.index if n.startswith(COUNTER) and n + "_min" in row.index]
        known = {n.removeprefix(COUNTER): row[n] for n in names if not math.isnan(row[n])}
        if known:
            numbers = ", ".join(f"{name} {value:,.0f}" for name, value in known.items())
            lines.append(f"Counters of {row.label}: {numbers}.")
    return lines


def kv_line(infos: Sequence[RunInfo]) -> str:
    """KV pool, prefix caching and predictions of these runs, in one line."""
    pools = [i.raw.get("kv_cache") or {} for i in infos]
    known = [p for p in pools if p.get("num_blocks") and p.get("block_size")]
    commands = [i.raw.get("serve_cmd") or [] for i in infos]
    off = {"--no-enable-prefix-caching" in words for words in commands}
    told = (assignments(words).get("LAB3_PREDICTOR") for words in commands)
    return (
        "KV pool of "
        + _joined(
            # One block is vLLM's own.
            f"{p['num_blocks']} blocks of {p['block_size']} = "
            f"{(p['num_blocks'] - 1) * p['block_size']:,} tokens"
            for p in known
        )
        + f"; prefix caching {' / '.join('off' if o else 'on' for o in sorted(off))}"
        + f"; predictions {_joined(told, nothing='none')}."
    )


def _source(infos: Sequence[RunInfo]) -> str:
    """ "Measured" or "SIMULATED": a simulated number must not pass for a measured one."""
    words = []
    for source in _values(info.source for info in infos):
        models = _values(i.raw.get("cost_model") for i in infos if i.source == source)
        detail = f" (cost model {', '.join(models)})" if models else ""
        words.append(("Measured" if source == "measured" else source.upper()) + detail)
    return " and ".join(words)


def hardware_text(hardware: dict[str, Any]) -> str:
    """Device, CPU, cores and memory of ``provenance.hardware()``."""
    gpu = hardware.get("gpu")
    if isinstance(gpu, list):
        gpu = ", ".join(str(g) for g in gpu)
    cpu = f"{hardware.get('cpu', 'unknown CPU')}, {hardware.get('cores', '?')} cores"
    if hardware.get("ram_gib"):
        cpu += f", {hardware['ram_gib']:.0f} GiB"
    return f"{gpu} ({cpu})" if gpu else f"{cpu}, no GPU"


def _model(name: Any) -> str | None:
    if name is None:
        return None
    path = Path(str(name))
    return path.name if path.is_absolute() else str(name)


def _load(infos: Sequence[RunInfo]) -> str:
    def load(info: RunInfo) -> str | None:
        asked, rate = info.asked, info.point.get("request_rate")
        if asked.get("num_prompts") is None:
            return None
        text = f"{asked['num_prompts']} requests"
        if isinstance(asked.get("input_tokens"), int) and asked.get("output_tokens") is not None:
            text += f" of {asked['input_tokens']}/{asked['output_tokens']} tokens"
        return text + ("" if rate is None else f" at {rate}/s")

    return _joined((load(i) for i in infos), nothing="")


def _commit(raw: dict[str, Any]) -> str | None:
    commit = raw.get("commit")
    return commit and str(commit)[:7] + ("+changes" if raw.get("dirty") else "")


def _days(started: Iterable[Any]) -> str:
    days = sorted({str(moment)[:10] for moment in started if moment})
    return days[0] if len(days) == 1 else " to ".join(days[:: len(days) - 1]) if days else ""


def _values(values: Iterable[Any]) -> list[str]:
    return sorted({str(value) for value in values if value})


def _joined(values: Iterable[Any], nothing: str = "unknown") -> str:
    return " / ".join(_values(values)) or nothing

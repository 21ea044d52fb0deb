"""From a plan's result file to the numbers of its row in the table. Nothing here imports torch.

Latency: all prompts are handed in at once, so a request's latency is the time from that moment
until its whole answer is there. A static batch hands over all its answers when its last one ends.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from lab3.task1.job import PLANS
from lab3.task1.kv_bytes import rectangle_peak_tokens

NAN = float("nan")


@dataclass(frozen=True)
class PlanRow:
    """One plan, one pass. Shares are 0..1; NaN where a number does not exist.

    ``padding_share``: prompt positions computed for padding. ``idle_row_share``: row-steps of
    decoding spent on rows whose answer had ended. ``kv_peak_tokens``: token slots by the formula
    (HF) or computed tokens by the recorder (vLLM). ``kv_held_tokens``: slots really taken, that is
    padding and half-empty blocks included. ``kv_waste_share``: part of them without a token of a
    request, at the peak.
    """

    plan: str
    label: str
    ok: bool
    reason: str
    batch: int = 0
    total_s: float = NAN
    output_tokens: int = 0
    output_tokens_per_s: float = NAN
    latency_p50_s: float = NAN
    latency_p99_s: float = NAN
    padding_share: float = NAN
    idle_row_share: float = NAN
    kv_peak_tokens: float = NAN
    kv_held_tokens: float = NAN
    kv_waste_share: float = NAN
    peak_memory_bytes: float = NAN
    load_s: float = NAN
    search_s: float = 0.0
    note: str = ""


def pass_of(result: dict[str, Any], mode: str) -> dict[str, Any] | None:
    """The pass of that mode in a result file, None if it was not measured."""
    return next((p for p in result["passes"] if p["mode"] == mode), None)


def plan_row(result: dict[str, Any], mode: str, prompt_lens: list[int]) -> PlanRow:
    """The row of one plan; a plan that failed gives a row that only says why."""
    plan, found = result["plan"], pass_of(result, mode)
    if result["status"] != "ok" or found is None:
        reason = result["reason"] or f"no {mode} pass was measured"
        return PlanRow(plan, PLANS[plan], False, reason)
    tokens = sum(map(len, found["outputs"]))
    p50, p99 = np.percentile(found["finish_s"], [50, 99])
    kind = _vllm_part(result, found) if plan == "vllm" else _hf_part(result, found, prompt_lens)
    return PlanRow(
        plan,
        PLANS[plan],
        True,
        "",
        batch=result["batch"],
        total_s=found["wall_s"],
        output_tokens=tokens,
        output_tokens_per_s=tokens / found["wall_s"],
        latency_p50_s=float(p50),
        latency_p99_s=float(p99),
        peak_memory_bytes=found["peak_memory_bytes"],
        load_s=result["load_s"],
        search_s=result.get("search_s", 0.0),
        **kind,
    )


def _hf_part(
    result: dict[str, Any], found: dict[str, Any], prompt_lens: list[int]
) -> dict[str, Any]:
    batches = found["batches"]
    positions = sum(len(b["rows"]) * b["width"] for b in batches)
    row_steps = sum(len(b["rows"]) * b["steps"] for b in batches)
    widest = max(batches, key=lambda b: len(b["rows"]) * (b["width"] + b["steps"]))
    held = rectangle_peak_tokens((len(b["rows"]), b["width"], b["steps"]) for b in batches)
    used = sum(prompt_lens[i] + len(found["outputs"][i]) for i in widest["rows"])
    return {
        "padding_share": 1 - sum(prompt_lens) / positions,
        "idle_row_share": 1 - sum(map(len, found["outputs"])) / row_steps,
        "kv_peak_tokens": held,
        "kv_held_tokens": held,
        "kv_waste_share": 1 - used / held,
        "note": _hf_note(result, batches),
    }


def _hf_note(result: dict[str, Any], batches: list[dict[str, Any]]) -> str:
    if result["plan"] == "hf-serial":
        return "one by one"
    batch, width = result["batch"], max(b["width"] for b in batches)
    many = "1 batch" if len(batches) == 1 else f"{len(batches)} batches"
    note = f"{many} of {batch}, padded to {width}"
    if len(batches) > 1 and len(batches[-1]["rows"]) < batch:
        note += f", last of {len(batches[-1]['rows'])}"
    if any(not fitted for _, fitted in result.get("tries", [])):
        note += "; largest batch that fits"
    return note


def _vllm_part(result: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    kv, block = found["kv"], result["kv_block_size"]
    _, tokens, blocks, _ = max(kv["series"], key=lambda point: point[2])
    running = max(point[3] for point in kv["series"])
    return {
        "padding_share": 0.0,
        "idle_row_share": 0.0,
        "kv_peak_tokens": kv["peak_tokens"],
        "kv_held_tokens": kv["peak_blocks"] * block,
        "kv_waste_share": 1 - tokens / (blocks * block),
        "note": f"up to {running} at once, blocks of {block} tokens",
    }

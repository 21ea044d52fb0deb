"""The lab's questions on Task 1, answered from the measured numbers in plain sentences."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from lab3.task1.agreement import Agreement, compare
from lab3.task1.job import EOS, FIXED, PLANS
from lab3.task1.measures import PlanRow, pass_of
from lab3.text_table import number, share

MIB = 2**20


def speed_up(rows: Mapping[str, PlanRow]) -> list[str]:
    """Question 1: how many times faster vLLM is, and what batching alone gives."""
    vllm = rows.get("vllm")
    others = [row for plan, row in rows.items() if plan != "vllm" and row.ok]
    if vllm is None or not vllm.ok or not others:
        return []
    times = ", ".join(
        f"{number(vllm.output_tokens_per_s / row.output_tokens_per_s)} times {row.label} "
        f"({number(row.output_tokens_per_s)})"
        for row in others
    )
    lines = [f"Speed-up: vLLM writes {number(vllm.output_tokens_per_s)} tokens/s, {times}."]
    serial, static = rows.get("hf-serial"), rows.get("hf-static")
    if serial and static and serial.ok and static.ok:
        batching = static.output_tokens_per_s / serial.output_tokens_per_s
        rest = vllm.output_tokens_per_s / static.output_tokens_per_s
        gain = f"batching alone is {number(batching)} times serial"
        if batching > 1:
            gain += f" (one pass over the weights serves {static.batch} rows)"
        lines.append(
            f"Of that, {gain}; the other {number(rest)} times is vLLM against the padded batch: no "
            f"padding ({share(static.padding_share)} of the static prompt positions) and cheaper "
            "steps (fused kernels, no copy of the KV cache at every token)."
        )
    return lines


def memory(rows: Mapping[str, PlanRow], kv_bytes: int) -> list[str]:
    """Question 2: why a static batch runs out of memory and what pages change."""
    static, vllm = rows.get("hf-static"), rows.get("vllm")
    lines = []
    if static and static.ok:
        lines.append(
            f"Memory, static batch: every row is as wide as the longest prompt and keeps its "
            f"place until the batch ends. {static.batch} rows take "
            f"{static.kv_held_tokens:,.0f} token slots ({_mib(static.kv_held_tokens, kv_bytes)}); "
            f"{share(static.kv_waste_share)} of them never hold a token of a request. They are one "
            "contiguous tensor per layer, which transformers copies to grow it by a token, so the "
            "old and the new one exist at once: memory runs out before the tokens need it."
        )
        if "largest batch" in static.note:
            lines.append(f"On this device no more than {static.batch} rows fit.")
    if vllm and vllm.ok:
        lines.append(
            f"Memory, pages: vLLM takes a block only when a token needs it. At the peak it held "
            f"{_mib(vllm.kv_held_tokens, kv_bytes)} in blocks for "
            f"{_mib(vllm.kv_peak_tokens, kv_bytes)} of tokens; {share(vllm.kv_waste_share)} of the "
            "held slots were empty, all in the last block of each request."
        )
    if static and vllm and static.ok and vllm.ok and static.batch == vllm.batch:
        more = int(static.kv_held_tokens / vllm.kv_held_tokens * vllm.batch)
        lines.append(
            f"The memory of that static batch of {static.batch} would hold {more} of these "
            "requests in blocks."
        )
    return lines


def idle_rows(
    results: Mapping[str, Mapping[str, Any]], eos_rows: Mapping[str, PlanRow]
) -> list[str]:
    """Question 3: what a finished row of a static batch does, from the pass that stops at eos."""
    static, vllm = eos_rows.get("hf-static"), eos_rows.get("vllm")
    if static is None or not static.ok:
        return []
    found = pass_of(dict(results["hf-static"]), EOS)
    lens, steps = [len(o) for o in found["outputs"]], found["batches"][0]["steps"]
    if static.idle_row_share == 0:
        return ["Idle rows: no answer ended before the others, so no row of the batch idled."]
    lines = [
        f"Idle rows, with answers that end at eos: they take {min(lens)} to {max(lens)} tokens "
        f"(median {statistics.median(lens):g}), but the batch decodes until its last row ends "
        f"({steps} steps). {share(static.idle_row_share)} of its row-steps compute padding for "
        "rows that are done, and their KV stays allocated."
    ]
    if vllm and vllm.ok:
        lines.append(
            f"vLLM takes a finished request out of the next step and frees its blocks: median "
            f"latency {number(vllm.latency_p50_s)} s against {number(static.latency_p50_s)} s, "
            f"{number(vllm.output_tokens_per_s)} against {number(static.output_tokens_per_s)} "
            f"useful tokens/s ({number(vllm.output_tokens_per_s / static.output_tokens_per_s)} "
            "times)."
        )
    return lines


def agreement(results: Mapping[str, Mapping[str, Any]], dtype: str, mode: str) -> list[str]:
    """Whether the engines wrote the same greedy tokens; another HF batch shape is the control."""
    pairs = [("hf-serial", "vllm"), ("hf-serial", "hf-static"), ("hf-static", "vllm")]
    found = [
        (one, other, compare(_outputs(results[one], mode), _outputs(results[other], mode)))
        for one, other in pairs
        if _outputs(results.get(one), mode) and _outputs(results.get(other), mode)
    ]
    lines = [_agreement_line(PLANS[one], PLANS[other], result) for one, other, result in found]
    if any(result.share < 1 for *_, result in found):
        lines.append(
            f"In {dtype} a matrix product rounds differently for another batch shape, and a near "
            "tie between two tokens then falls the other way; after one such token the texts go "
            "different ways. HF's own two plans differ for the same reason. With --dtype float32 "
            "they agree."
            if dtype != "float32"
            else "Even float32 rounds differently for another batch shape, though rarely enough "
            "to turn a tie between tokens."
        )
    return lines


def _outputs(result: Mapping[str, Any] | None, mode: str) -> Sequence[Sequence[int]] | None:
    found = pass_of(dict(result), mode) if result else None
    return found["outputs"] if found else None


def _agreement_line(one: str, other: str, result: Agreement) -> str:
    line = (
        f"Greedy tokens, {other} against {one}: {result.identical} of {result.compared} identical"
    )
    if result.first_differences:
        line += (
            f"; the others part at new token {result.earliest + 1} at the earliest, "
            f"{result.median + 1:g} in the median"
        )
    return line + "."


def _mib(tokens: float, kv_bytes: int) -> str:
    return f"{number(tokens * kv_bytes / MIB)} MiB"


def answers(
    results: Mapping[str, Mapping[str, Any]],
    rows: Mapping[str, PlanRow],
    eos_rows: Mapping[str, PlanRow],
    run: Mapping[str, Any],
) -> list[str]:
    """All sentences below the table, in the order of the lab's questions."""
    kv_bytes, mode = run["kv_bytes_per_token"], run["mode"]
    lines = speed_up(rows) + memory(rows, kv_bytes) + idle_rows(results, eos_rows)
    if mode == FIXED and not any(row.ok for row in eos_rows.values()):
        lines.append("Idle rows: every answer has the same length here; run with --stop-at-eos.")
    return lines + agreement(results, run["dtype"], mode)

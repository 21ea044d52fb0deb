"""Table, answers and figure of Task 1 from the files of its runs; no model and no vLLM needed."""

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lab3.captions import provenance_line
from lab3.results import RunInfo
from lab3.task1 import analysis
from lab3.task1.job import EOS, PLANS
from lab3.task1.measures import PlanRow, plan_row
from lab3.text_table import Cell, Table, number, share, to_markdown, to_text, wrapped

RUN_FILE = "run.json"
MIB = 2**20


def load(folder: Path) -> tuple[dict[str, Any], dict[str, dict[str, Any]], list[str]]:
    """What was run, the results by plan, and a line for each result that had to be left out.

    A result of other prompts, another model or another length is left out. Raises ValueError when
    the folder holds no run.
    """
    try:
        run = json.loads((folder / RUN_FILE).read_text())
    except (OSError, ValueError):
        raise ValueError(f"no results of Task 1 in {folder}: run without --report-only") from None
    results, left_out = {}, []
    for plan in PLANS:
        path = folder / f"{plan}.json"
        if not path.exists():
            continue
        result = json.loads(path.read_text())
        if result["setup"] == run["setup"]:
            results[plan] = result
        else:
            left_out.append(f"{plan} is of an earlier run with other settings: left out")
    return run, results, left_out


def report(folder: Path) -> tuple[str, bool]:
    """Write task1.csv, table.md, table.txt and the figure; return the text and whether all is well.

    Raises ValueError when the folder holds no run.
    """
    run, results, left_out = load(folder)
    rows = {p: plan_row(r, run["mode"], run["prompt_lens"]) for p, r in results.items()}
    eos_rows = {
        p: plan_row(r, EOS, run["prompt_lens"])
        for p, r in results.items()
        if any(found["mode"] == EOS for found in r["passes"])
    }
    failed = [f"{row.label} failed: {row.reason}" for row in rows.values() if not row.ok]
    tables = [lab_table(rows, run), more_table(rows)]
    said = analysis.answers(results, rows, eos_rows, run)
    captions = [provenance_line([RunInfo(folder, run)]) + ".", setup_line(run)]
    notes = [f"NOT COMPLETE: {line}" for line in failed + left_out]
    below = [*said, *captions, *notes]
    text = "\n\n".join([*map(to_text, tables), *map(sample_text, run["samples"]), wrapped(below)])
    blocks = [*map(to_markdown, tables), "\n".join(f"- {line}" for line in below)]
    blocks += [f"```text\n{sample_text(sample)}\n```" for sample in run["samples"]]
    write_csv(folder / "task1.csv", rows, eos_rows, run)
    (folder / "table.txt").write_text(text + "\n", encoding="utf-8")
    (folder / "table.md").write_text("\n\n".join(blocks) + "\n", encoding="utf-8")
    if any(row.ok for row in rows.values()):
        from lab3.task1 import figure

        figure.draw(results, rows, run, captions, folder)
    return text, not notes


def lab_table(rows: Mapping[str, PlanRow], run: Mapping[str, Any]) -> Table:
    """The lab's own table."""
    serial = rows.get("hf-serial")
    what = (
        "answers end at eos" if run["mode"] == EOS else f"{run['max_new_tokens']} new tokens each"
    )
    title = f"Task 1: {len(run['prompt_lens'])} prompts, {what}, greedy, {run['dtype']}"
    headers = (
        ("plan", ""),
        ("total time", "s"),
        ("throughput", "output tok/s"),
        ("speed-up", "x serial"),
        ("peak KV cache", "MiB"),
        ("note", ""),
    )
    cells = []
    for row in rows.values():
        faster = row.output_tokens_per_s / serial.output_tokens_per_s if serial else float("nan")
        kv_mib = row.kv_peak_tokens * run["kv_bytes_per_token"] / MIB
        values = (row.total_s, row.output_tokens_per_s, faster, kv_mib)
        note = row.note if row.ok else "failed, see below"
        cells.append((Cell(row.label), *(Cell(number(v)) for v in values), Cell(note)))
    return Table(title, headers, tuple(cells))


def more_table(rows: Mapping[str, PlanRow]) -> Table:
    """What the lab's table does not show: latency, waste, memory, loading."""
    headers = (
        ("plan", ""),
        ("latency P50", "s"),
        ("latency P99", "s"),
        ("padding", "of prompt"),
        ("idle rows", "of decode"),
        ("KV wasted", "of held"),
        ("peak memory", "MiB"),
        ("load", "s"),
        ("batch search", "s"),
    )
    cells = []
    for row in rows.values():
        shares = (row.padding_share, row.idle_row_share, row.kv_waste_share)
        cells.append(
            (
                Cell(row.label),
                Cell(number(row.latency_p50_s)),
                Cell(number(row.latency_p99_s)),
                *(Cell(share(value)) for value in shares),
                Cell(number(row.peak_memory_bytes / MIB)),
                Cell(number(row.load_s)),
                Cell(number(row.search_s)),
            )
        )
    return Table("Task 1, more", headers, tuple(cells))


def setup_line(run: Mapping[str, Any]) -> str:
    """How the numbers were taken, in one line."""
    lens, on_gpu = run["prompt_lens"], run["device"] != "cpu"
    memory = "peak memory allocated on the device" if on_gpu else "peak resident memory"
    whose = "vLLM's includes its KV pool"
    if not on_gpu:
        whose = "vLLM's: its KV pool and three processes, whose shared libraries count three times"
    return (
        f"Prompts ({run['prompt_source']}) of {min(lens)} to {max(lens)} tokens, the same ids for "
        f"every plan; KV {run['kv_bytes_per_token']:,} bytes a token; times without loading and "
        f"warm-up; latency from handing in all prompts to the whole answer; memory: {memory} while "
        f"measuring ({whose}); prefix caching off."
    )


def sample_text(sample: Mapping[str, str]) -> str:
    """One prompt's end and what the plans answered."""
    lines = [f"[{sample['which']}] {sample['prompt']}"]
    return "\n".join(lines + [f"  {label}: {text}" for label, text in sample["answers"].items()])


def write_csv(
    path: Path,
    rows: Mapping[str, PlanRow],
    eos_rows: Mapping[str, PlanRow],
    run: Mapping[str, Any],
) -> None:
    """One line a plan and pass, every number in full."""
    passes: Sequence[tuple[str, Mapping[str, PlanRow]]] = [(run["mode"], rows)]
    if run["mode"] != EOS:
        passes = [*passes, (EOS, eos_rows)]
    lines = []
    for mode, found in passes:
        for row in found.values():
            kv = row.kv_peak_tokens * run["kv_bytes_per_token"]
            lines.append({"mode": mode} | asdict(row) | {"kv_peak_bytes": kv})
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, lines[0] if lines else ["mode"])
        writer.writeheader()
        writer.writerows(lines)

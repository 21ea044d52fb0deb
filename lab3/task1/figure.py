"""The figure of Task 1: throughput, KV cache over time, rows of a static batch that idle."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from lab3.figures.style import GREY, Look, footer, looks, new_figure, save
from lab3.task1.job import EOS, PLANS
from lab3.task1.measures import PlanRow, pass_of
from lab3.text_table import number

MIB = 2**20


def draw(
    results: Mapping[str, Mapping[str, Any]],
    rows: Mapping[str, PlanRow],
    run: Mapping[str, Any],
    caption: Sequence[str],
    out: Path,
) -> list[Path]:
    """Write task1.png, .svg and .pdf into ``out``; panels without data are left out.

    ``caption``: lines of small print below.
    """
    panels = [_draw_throughput]
    if _kv_series(results, run["mode"]):
        panels.append(_draw_kv)
    if _static_eos(results):
        panels.append(_draw_idle)
    figure, axes = new_figure(1, len(panels), 4.0 * len(panels), 3.9)
    look = looks(list(PLANS.values()))
    for axis, panel in zip(axes[0], panels, strict=True):
        panel(axis, results, rows, run, look)
        axis.tick_params(labelsize=8)
    footer(figure, caption)
    return save(figure, out, "task1")


def _draw_throughput(
    axis: Axes, results: Any, rows: Mapping[str, PlanRow], run: Any, look: Mapping[str, Look]
) -> None:
    done = [row for row in rows.values() if row.ok]
    base = done[0]
    values = [row.output_tokens_per_s for row in done]
    places = range(len(done))
    axis.bar(places, values, color=[look[row.label].colour for row in done], width=0.65)
    for place, row in zip(places, done, strict=True):
        text = number(row.output_tokens_per_s)
        if row is not base:
            text += f"\n×{number(row.output_tokens_per_s / base.output_tokens_per_s)}"
        axis.annotate(
            text,
            (place, row.output_tokens_per_s),
            (0, 2),
            textcoords="offset points",
            ha="center",
            fontsize=8,
        )
    axis.set_xticks(places, [row.label.replace(" ", "\n") for row in done], fontsize=8)
    axis.set_ylim(0, max(values) * 1.2)
    axis.set_ylabel("output tokens/s", fontsize=9)
    axis.set_title(f"Throughput (× = times {base.label})", fontsize=10)
    axis.grid(axis="x", visible=False)


def _draw_kv(
    axis: Axes,
    results: Mapping[str, Any],
    rows: Mapping[str, PlanRow],
    run: Mapping[str, Any],
    look: Mapping[str, Look],
) -> None:
    token_mib = run["kv_bytes_per_token"] / MIB
    block = results["vllm"]["kv_block_size"]
    series = _kv_series(results, run["mode"])
    seconds = [point[0] for point in series]
    colour = look[PLANS["vllm"]].colour
    held = [point[2] * block * token_mib for point in series]
    tokens = [point[1] * token_mib for point in series]
    axis.fill_between(seconds, held, color=colour, alpha=0.2, linewidth=0)
    axis.plot(seconds, held, color=colour, linewidth=0.9, linestyle=(0, (3, 1.5)))
    axis.plot(seconds, tokens, color=colour, linewidth=1.6)
    top = max(held)
    handles = [
        Line2D([], [], color=colour, linewidth=1.6, label="vLLM, tokens computed"),
        Line2D([], [], color=colour, linewidth=0.9, linestyle=(0, (3, 1.5)), label="vLLM, blocks"),
    ]
    for plan in ("hf-static", "hf-static-sorted", "hf-serial"):
        row = rows.get(plan)
        if row is None or not row.ok:
            continue
        ceiling = row.kv_peak_tokens * token_mib
        top = max(top, ceiling)
        style = look[row.label]
        axis.axhline(ceiling, color=style.colour, linestyle=style.line, linewidth=1.2)
        label = f"{row.label}, peak {number(ceiling)}"
        handles.append(Line2D([], [], color=style.colour, linestyle=style.line, label=label))
    axis.set_ylim(0, top * 1.08)
    axis.set_xlim(0, seconds[-1])
    axis.set_xlabel("seconds since vLLM got all prompts", fontsize=9)
    axis.set_ylabel("KV cache (MiB)", fontsize=9)
    axis.set_title("KV cache held", fontsize=10)
    axis.legend(
        handles=handles,
        fontsize=7,
        loc="upper center",
        bbox_to_anchor=(0.5, -0.2),
        ncols=2,
        handlelength=2.6,
        frameon=False,
    )


def _draw_idle(
    axis: Axes,
    results: Mapping[str, Any],
    rows: Any,
    run: Any,
    look: Mapping[str, Look],
) -> None:
    found = _static_eos(results)
    first = found["batches"][0]
    lens = [len(found["outputs"][i]) for i in first["rows"]]
    steps = range(1, first["steps"] + 1)
    busy = [sum(length >= step for length in lens) for step in steps]
    colour = look[PLANS["hf-static"]].colour
    axis.fill_between(steps, busy, color=colour, alpha=0.55, step="mid", linewidth=0)
    axis.fill_between(
        steps, busy, len(lens), facecolor="none", edgecolor=GREY, hatch="////", step="mid", lw=0
    )
    axis.axhline(len(lens), color=GREY, linewidth=1.2)
    axis.set_xlim(1, max(first["steps"], 2))
    axis.set_ylim(0, len(lens) * 1.18)
    middle = first["steps"] / 2
    axis.text(middle, len(lens) * 1.03, "rows computed at every step", ha="center", fontsize=7.5)
    axis.set_xlabel("decoding step of the static batch", fontsize=9)
    axis.set_ylabel("rows", fontsize=9)
    axis.set_title("Answers that end at eos: rows still needed\n(hatched: idle)", fontsize=10)


def _kv_series(results: Mapping[str, Mapping[str, Any]], mode: str) -> list[list[float]]:
    found = pass_of(dict(results["vllm"]), mode) if "vllm" in results else None
    return found["kv"]["series"] if found else []


def _static_eos(results: Mapping[str, Mapping[str, Any]]) -> dict[str, Any] | None:
    found = pass_of(dict(results["hf-static"]), EOS) if "hf-static" in results else None
    if found and any(len(o) < found["batches"][0]["steps"] for o in found["outputs"]):
        return found
    return None

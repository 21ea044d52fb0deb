"""Hand-made run folders for tests: a bench file as vLLM writes it, a step record, a run.json.

`bench_result` builds the file from arrays and adds the summary numbers the way vLLM does.
`engine_trace` invents the arrays and steps of a small engine with a queue, so that tables and
figures have something realistic to show. `write_run` puts them into a folder.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

RUN_INFO: dict[str, Any] = {
    "schema": 1,
    "task": "task3",
    "arm": "default",
    "label": "vLLM default",
    "repeat": 1,
    "point": {},
    "source": "measured",
    "scheduler_cls": None,
    "scheduler_settings": {},
    "scheduler_base": "Scheduler",
    "async_scheduling": False,
    "profile": {"name": "cpu", "MODEL": "models/tiny", "REQUEST_RATE": 20},
    "timeout_s": 60.0,
    "serve_cmd": ["vllm", "serve"],
    "bench_cmd": ["vllm", "bench", "serve"],
    "versions": {"vllm": "0.32.0+cpu", "torch": "2.13.0+cpu"},
    "commit": "0123456789abcdef",
    "dirty": False,
    "hardware": {"cpu": "Test CPU", "cores": 2, "ram_gib": 24, "gpu": None},
    "kv_cache": {"num_blocks": 100, "block_size": 16},
    "server_metrics": {"num_preemptions": 0},
    "status": "ok",
    "reason": "",
    "started": "2026-01-02T03:04:05+00:00",
    "wall_s": 20.0,
}


def bench_result(
    ttfts: list[float],
    itls: list[list[float]],
    *,
    start_times: list[float] | None = None,
    input_lens: list[int] | None = None,
    output_lens: list[int] | None = None,
    errors: list[str] | None = None,
    failed: tuple[int, ...] = (),
    **extra: Any,
) -> dict[str, Any]:
    """What `vllm bench serve` saves for these requests; times in seconds, in send order.

    A request with an error text, or named in `failed` (its error text may be ""), counts as
    failed: vLLM gives it latency 0 and output length 0 but keeps its partial ttft and itls.
    """
    n = len(ttfts)
    errors = errors or [""] * n
    bad = {i for i in range(n) if errors[i]} | set(failed)
    good = [i for i in range(n) if i not in bad]
    lens = output_lens or [len(gaps) + 1 for gaps in itls]
    lens = [0 if i in bad else lens[i] for i in range(n)]
    inputs = input_lens or [16] * n
    starts = start_times or [1000.0 + 0.1 * i for i in range(n)]
    latencies = [0.0 if i in bad else ttfts[i] + sum(itls[i]) for i in range(n)]
    ends = [starts[i] + latencies[i] for i in good]
    duration = max(ends) - min(starts) if good else 1.0
    samples = {
        "ttft": [ttfts[i] for i in good],
        "tpot": [(latencies[i] - ttfts[i]) / (lens[i] - 1) for i in good if lens[i] > 1],
        "itl": [gap for i in good for gap in itls[i]],
        "e2el": [latencies[i] for i in good],
    }
    result = {
        "num_prompts": n,
        "request_rate": "inf",
        "max_concurrency": None,
        "duration": duration,
        "completed": len(good),
        "failed": len(bad),
        "total_input_tokens": sum(inputs[i] for i in good),
        "total_output_tokens": sum(lens),
        "request_throughput": len(good) / duration,
        "output_throughput": sum(lens) / duration,
        "input_lens": inputs,
        "output_lens": lens,
        "ttfts": ttfts,
        "itls": itls,
        "latencies": latencies,
        "start_times": starts,
        "queue_times": [0.0] * n,
        "errors": errors,
    }
    for name, values in samples.items():
        result |= {
            f"mean_{name}_ms": float(np.mean(values or 0)) * 1000,
            f"median_{name}_ms": float(np.median(values or 0)) * 1000,
            f"std_{name}_ms": float(np.std(values or 0)) * 1000,
            f"p99_{name}_ms": float(np.percentile(values or 0, 99)) * 1000,
        }
    return result | extra


def write_run(
    folder: Path,
    bench: dict[str, Any] | str | None,
    steps: list[dict[str, Any]] | None = None,
    **info: Any,
) -> Path:
    """Writes a run folder; a `bench` that is text is written as it stands. Returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    if bench is not None:
        text = bench if isinstance(bench, str) else json.dumps(bench)
        (folder / "bench.json").write_text(text)
    if steps is not None:
        (folder / "steps.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    asked = {} if not isinstance(bench, dict) else {"num_prompts": len(bench["errors"])}
    (folder / "run.json").write_text(json.dumps(RUN_INFO | {"asked": asked} | info))
    return folder


def engine_trace(
    *,
    exclusive: bool = False,
    shortest_first: bool = False,
    n: int = 160,
    rate: float = 22.0,
    input_tokens: int = 256,
    output_tokens: int = 64,
    budget: int = 2048,
    spread: float = 0.0,
    speed: float = 1.0,
    seed: int = 0,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A bench result and step record of an invented engine with one queue.

    exclusive: a step with waiting prompts decodes nothing. shortest_first: the queue's order.
    spread: prompt lengths vary by this share. speed: larger is faster. Same seed, same arrivals.
    """
    rng = np.random.default_rng(seed)
    arrivals = 1000.0 + np.cumsum(rng.exponential(1 / rate, n))
    prompts = (input_tokens * (1 + spread * rng.uniform(-1, 1, n))).astype(int)
    left = prompts.copy()
    stamps: list[list[float]] = [[] for _ in range(n)]
    steps, now, waiting, running, sent = [], float(arrivals[0]), [], [], 0
    while sent < n or waiting or running:
        while sent < n and arrivals[sent] <= now:
            waiting.append(sent)
            sent += 1
        if not waiting and not running:
            now = float(arrivals[sent])
            continue
        if shortest_first:
            waiting.sort(key=lambda i: prompts[i])
        decoding = [] if exclusive and waiting else list(running)
        room, prefilled = budget - len(decoding), []
        while waiting and room > 0:
            chunk = min(room, int(left[waiting[0]]))
            left[waiting[0]] -= chunk
            room -= chunk
            prefilled.append((waiting[0], chunk))
            if left[waiting[0]] == 0:
                running.append(waiting.pop(0))
        tokens = sum(chunk for _, chunk in prefilled)
        cost_ms = (4 + 0.06 * tokens + 0.12 * len(decoding)) * rng.lognormal(0, 0.06) / speed
        called, now = now, now + cost_ms / 1000
        first = [i for i, _ in prefilled if left[i] == 0]
        gaps = [round((now - stamps[i][-1]) * 1000, 3) for i in decoding]
        for i in first + decoding:
            stamps[i].append(now)
        steps.append(
            {
                "t_s": called,
                "done_s": now,
                "prefill_tokens": tokens,
                "decode_tokens": len(decoding),
                "prefill_requests": len(prefilled),
                "decode_requests": len(decoding),
                "running": len(running),
                "waiting": len(waiting),
                "kv_blocks": len(running) * 3,
                "preemptions": 0,
                "recomputed_tokens": 0,
                "ttft_ms": [(now - float(arrivals[i])) * 1000 for i in first],
                "itl_ms": [[gap, gaps.count(gap)] for gap in sorted(set(gaps))],
            }
        )
        running = [i for i in running if len(stamps[i]) < output_tokens]
    seen = [np.array(s) + 0.002 + rng.exponential(0.0008, len(s)) for s in stamps]
    seen = [np.maximum.accumulate(s) for s in seen]
    bench = bench_result(
        [float(s[0] - a) for s, a in zip(seen, arrivals, strict=True)],
        [np.diff(s).tolist() for s in seen],
        start_times=arrivals.tolist(),
        input_lens=prompts.tolist(),
        request_rate=rate,
    )
    return bench, steps

"""What a running vLLM server says about itself on /metrics, sampled while the bench runs.

A metric that the page does not have is None here and "not found" in print, never 0.
"""

import json
import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

KV_USAGE_NAMES = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
"""The gauge of the share of KV blocks in use, 0..1: today's name, then the older one."""

COUNTERS = {
    "num_preemptions": "vllm:num_preemptions_total",
    "prompt_tokens": "vllm:prompt_tokens_total",
    "generation_tokens": "vllm:generation_tokens_total",
    "requests_finished": "vllm:request_success_total",
}
GAUGES = {
    "requests_running": "vllm:num_requests_running",
    "requests_waiting": "vllm:num_requests_waiting",
}


@dataclass(frozen=True)
class Sample:
    """One look at /metrics; ``None`` stands for "the page does not have it".

    ``t_s``: time.monotonic() seconds. ``kv_usage``: share 0..1 of the KV blocks in use, by engine
    label. The counters are totals since the server started, summed over the engines, as are the
    gauges of requests.
    """

    t_s: float
    kv_usage_metric: str | None = None
    kv_usage: dict[str, float] = field(default_factory=dict)
    num_preemptions: float | None = None
    prompt_tokens: float | None = None
    generation_tokens: float | None = None
    requests_finished: float | None = None
    requests_running: float | None = None
    requests_waiting: float | None = None

    @property
    def work_done(self) -> tuple[float | None, ...]:
        """What grows whenever the engine gets anywhere."""
        return self.prompt_tokens, self.generation_tokens, self.requests_finished

    @property
    def is_busy(self) -> bool:
        """Whether the engine says that it holds requests."""
        return bool((self.requests_running or 0) + (self.requests_waiting or 0))


@dataclass(frozen=True)
class KVCache:
    """The server's KV pool: blocks of all engines together, and tokens a block."""

    num_blocks: int | None = None
    block_size: int | None = None


def parse_sample(page: str, t_s: float) -> Sample:
    """The sample in a /metrics page; raises ValueError when it is not a metrics page at all."""
    by_name = _samples_by_name(page)
    kv_name = next((name for name in KV_USAGE_NAMES if name in by_name), None)
    kv_usage = {labels.get("engine", "0"): value for labels, value in by_name.get(kv_name, [])}
    totals = {
        key: sum(value for _, value in by_name[name]) if name in by_name else None
        for key, name in (COUNTERS | GAUGES).items()
    }
    return Sample(t_s=t_s, kv_usage_metric=kv_name, kv_usage=kv_usage, **totals)


def parse_kv_cache(page: str) -> KVCache:
    """The KV pool out of ``vllm:cache_config_info``; fields are None where it says nothing."""
    infos = [labels for labels, _ in _samples_by_name(page).get("vllm:cache_config_info", [])]
    # vLLM adds up the blocks of all engines first and then writes the sum under each of them.
    blocks = [_whole(labels.get("num_gpu_blocks")) for labels in infos]
    sizes = {_whole(labels.get("block_size")) for labels in infos}
    return KVCache(
        num_blocks=max((count for count in blocks if count is not None), default=None),
        block_size=sizes.pop() if len(sizes) == 1 else None,
    )


def _samples_by_name(page: str) -> dict[str, list[tuple[Mapping[str, str], float]]]:
    by_name: dict[str, list[tuple[Mapping[str, str], float]]] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if math.isfinite(sample.value):
                by_name.setdefault(sample.name, []).append((sample.labels, sample.value))
    return by_name


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


def summarize(samples: list[Sample], kv_cache: KVCache) -> dict[str, Any]:
    """The samples of one run as the ``server_metrics`` of its run.json.

    Counters: increase from the first to the last sample. ``kv_usage_peak``: largest share (0..1)
    of the whole pool in use, engines weighted alike; ``kv_usage_peak_by_engine``: each engine's
    own. ``kv_blocks_peak`` and ``kv_tokens_peak``: that share in blocks and in tokens of room.
    Unknown numbers are None and named in ``not_found``.
    """
    summary: dict[str, Any] = {"samples": len(samples)}
    for key in COUNTERS:
        values = [getattr(sample, key) for sample in samples]
        known = bool(values) and None not in (values[0], values[-1])
        summary[key] = values[-1] - values[0] if known else None
    for key in GAUGES:
        values = [v for sample in samples if (v := getattr(sample, key)) is not None]
        summary[f"{key}_peak"] = max(values, default=None)
    summary |= _kv_summary(samples, kv_cache)
    summary["not_found"] = sorted(key for key, value in summary.items() if value is None)
    return summary


def _kv_summary(samples: list[Sample], kv_cache: KVCache) -> dict[str, Any]:
    with_kv = [sample for sample in samples if sample.kv_usage]
    by_engine: dict[str, float] = {}
    for sample in with_kv:
        for engine, usage in sample.kv_usage.items():
            by_engine[engine] = max(by_engine.get(engine, 0.0), usage)
    peak = max((sum(s.kv_usage.values()) / len(s.kv_usage) for s in with_kv), default=None)
    blocks = None
    if peak is not None and kv_cache.num_blocks:
        # Each engine's block 0 is the null block and not counted in the usage.
        blocks = round(peak * (kv_cache.num_blocks - len(by_engine)))
    has_tokens = blocks is not None and kv_cache.block_size is not None
    return {
        "kv_usage_metric": with_kv[-1].kv_usage_metric if with_kv else None,
        "kv_usage_peak": peak,
        "kv_usage_peak_by_engine": by_engine or None,
        "kv_blocks_peak": blocks,
        "kv_tokens_peak": blocks * kv_cache.block_size if has_tokens else None,
    }


def percent_or_not_found(share: float | None) -> str:
    """A share of 0..1 for people: ``0.123`` is "12.3 %", ``None`` is "not found"."""
    return "not found" if share is None else f"{share:.1%}".replace("%", " %")


class MetricsSampler:
    """Fetches /metrics of one server and keeps the samples of one run.

    ``failing_since_s``: time.monotonic() since when the server gives no answer at all, None while
    it answers (be it "404").
    """

    def __init__(self, base_url: str, timeout_s: float = 5.0) -> None:
        # No trust_env: a proxy in the environment has nothing to do with 127.0.0.1.
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=timeout_s))
        self._url = f"{base_url}/metrics"
        self.samples: list[Sample] = []
        self.kv_cache = KVCache()
        self.failing_since_s: float | None = None

    async def close(self) -> None:
        """Close the connection."""
        await self._session.close()

    async def fetch(self) -> str | None:
        """The page as text, None when the server does not deliver one."""
        asked_s = time.monotonic()
        try:
            async with self._session.get(self._url) as response:
                page = await response.text()
                self.failing_since_s = None
                return page if response.status == 200 else None
        except (aiohttp.ClientError, TimeoutError, OSError):
            pass
        if self.failing_since_s is None:
            self.failing_since_s = asked_s
        return None

    async def sample(self) -> Sample | None:
        """Take and keep one sample; None when there was none to take."""
        page = await self.fetch()
        if page is None:
            return None
        try:
            sample = parse_sample(page, time.monotonic())
        except ValueError:
            return None
        if self.kv_cache == KVCache():
            self.kv_cache = parse_kv_cache(page)
        self.samples.append(sample)
        return sample

    def write(self, path: Path) -> None:
        """Save the samples, one JSON object a line."""
        path.write_text("".join(json.dumps(asdict(sample)) + "\n" for sample in self.samples))

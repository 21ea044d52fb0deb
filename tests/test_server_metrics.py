"""/metrics pages of several vLLM versions, and what is made of the samples of a run."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from test_server import free_port

from lab3.server_metrics import (
    KVCache,
    MetricsSampler,
    Sample,
    parse_kv_cache,
    parse_sample,
    percent_or_not_found,
    summarize,
)

PAGE = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.123
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{engine="0",model_name="m"} 4.0
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="m"} 1024.0
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="m"} 256.0
# TYPE vllm:request_success_total counter
vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 1.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="m"} 7.0
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="1001"} 1.0
"""
TWO_ENGINES = PAGE + "".join(
    line.replace('engine="0"', 'engine="1"').replace("0.123", "0.5") + "\n"
    for line in PAGE.splitlines()
    if not line.startswith("#")
)


def test_a_page_of_todays_vllm() -> None:
    sample = parse_sample(PAGE, t_s=5.0)
    assert sample == Sample(
        t_s=5.0,
        kv_usage_metric="vllm:kv_cache_usage_perc",
        kv_usage={"0": 0.123},
        num_preemptions=4,
        prompt_tokens=1024,
        generation_tokens=256,
        requests_finished=8,
        requests_running=3,
        requests_waiting=2,
    )
    assert sample.is_busy
    assert parse_kv_cache(PAGE) == KVCache(num_blocks=1001, block_size=16)


def test_the_older_name_of_the_kv_gauge() -> None:
    sample = parse_sample(PAGE.replace("kv_cache_usage", "gpu_cache_usage"), 0.0)
    assert sample.kv_usage_metric == "vllm:gpu_cache_usage_perc"
    assert sample.kv_usage == {"0": 0.123}


def test_todays_name_wins_when_a_page_has_both() -> None:
    page = PAGE + 'vllm:gpu_cache_usage_perc{engine="0"} 0.9\n'
    assert parse_sample(page, 0.0).kv_usage == {"0": 0.123}


def test_a_page_without_them_says_not_found_not_zero() -> None:
    page = "# TYPE python_info gauge\npython_info 1.0\n"
    sample = parse_sample(page, 0.0)
    assert sample == Sample(t_s=0.0)
    assert not sample.is_busy
    summary = summarize([sample, sample], parse_kv_cache(page))
    assert summary["kv_usage_peak"] is None
    assert summary["num_preemptions"] is None
    assert {"kv_usage_peak", "kv_tokens_peak", "num_preemptions"} <= set(summary["not_found"])
    assert percent_or_not_found(summary["kv_usage_peak"]) == "not found"
    assert percent_or_not_found(0.0) == "0.0 %"
    assert percent_or_not_found(0.1234) == "12.3 %"


def test_several_engines() -> None:
    sample = parse_sample(TWO_ENGINES, 0.0)
    assert sample.kv_usage == {"0": 0.123, "1": 0.5}
    assert (sample.requests_running, sample.num_preemptions) == (6, 8)
    # Each engine's line holds the sum over the engines already.
    cache = parse_kv_cache(TWO_ENGINES)
    assert cache.num_blocks == 1001
    summary = summarize([sample], cache)
    assert summary["kv_usage_peak_by_engine"] == {"0": 0.123, "1": 0.5}
    assert summary["kv_usage_peak"] == pytest.approx((0.123 + 0.5) / 2)


def test_cache_info_that_is_not_known_yet() -> None:
    assert parse_kv_cache(PAGE.replace('"1001"', '"None"')) == KVCache(None, 16)


def test_nan_is_not_a_value() -> None:
    assert parse_sample(PAGE.replace(" 0.123", " NaN"), 0.0).kv_usage == {}


def test_counters_are_increases_and_gauges_are_peaks() -> None:
    def sample(preemptions: float, usage: float, running: float) -> Sample:
        return Sample(
            0.0,
            "vllm:kv_cache_usage_perc",
            {"0": usage},
            num_preemptions=preemptions,
            requests_running=running,
        )

    samples = [sample(10, 0.1, 1), sample(12, 0.6, 9), sample(15, 0.2, 0)]
    summary = summarize(samples, KVCache(num_blocks=101, block_size=16))
    assert summary["samples"] == 3
    assert summary["num_preemptions"] == 5
    assert summary["requests_running_peak"] == 9
    assert summary["kv_usage_peak"] == 0.6
    assert summary["kv_blocks_peak"] == 60  # of the 100 that are not the null block
    assert summary["kv_tokens_peak"] == 960
    assert summary["requests_waiting_peak"] is None


def test_no_sample_at_all_is_not_found() -> None:
    summary = summarize([], KVCache())
    assert summary["samples"] == 0
    assert all(summary[key] is None for key in summary["not_found"])
    assert len(summary["not_found"]) == len(summary) - 2


@asynccontextmanager
async def server_of(handler) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_get("/metrics", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


def sample_twice(handler, timeout_s: float = 5.0) -> MetricsSampler:
    async def go() -> MetricsSampler:
        async with server_of(handler) as url:
            sampler = MetricsSampler(url, timeout_s)
            for _ in range(2):
                await sampler.sample()
            await sampler.close()
            return sampler

    return asyncio.run(go())


def test_sampler_reads_a_live_page_past_any_proxy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)

    async def page(_: web.Request) -> web.Response:
        return web.Response(text=PAGE)

    sampler = sample_twice(page)
    assert [sample.kv_usage for sample in sampler.samples] == [{"0": 0.123}] * 2
    assert sampler.kv_cache == KVCache(1001, 16)
    assert sampler.failing_since_s is None
    sampler.write(tmp_path / "metrics.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [Sample(**line) for line in lines] == sampler.samples


def test_sampler_tells_a_silent_server_from_one_without_the_page() -> None:
    async def silent(_: web.Request) -> web.Response:
        await asyncio.sleep(3600)
        return web.Response()

    async def missing(_: web.Request) -> web.Response:
        raise web.HTTPNotFound

    assert sample_twice(silent, timeout_s=0.2).failing_since_s is not None
    without = sample_twice(missing)
    assert without.samples == []
    assert without.failing_since_s is None


def test_sampler_survives_a_page_that_is_no_metrics_page() -> None:
    async def nonsense(_: web.Request) -> web.Response:
        return web.Response(text="<html>{oops</html>")

    assert sample_twice(nonsense).samples == []

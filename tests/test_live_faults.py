"""What a real server survives, and what is left when it does not: killed processes, clients that
leave in a storm while KV blocks run out, requests with nonsense in them.

Each server is started by the runner with a slow bench in the background, so that every test also
shows how a run ends that goes wrong in the middle.
"""

import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
from test_processes import ROOT, wait_until
from test_server import free_port

from lab3.server_metrics import Sample, parse_sample

pytestmark = [pytest.mark.live, pytest.mark.timeout(1200)]

VLLM = str(Path(sys.executable).parent / "vllm")
START_S = 600.0
MODEL_LEN = 192
# 9 usable blocks of 32 tokens: two long answers fill the pool.
ENGINE = "--dtype float32 --enforce-eager --block-size 32 --num-gpu-blocks-override 10"
ENGINE += f" --max-model-len {MODEL_LEN} --max-num-seqs 8 --max-num-batched-tokens 64"
ENGINE += " --no-enable-prefix-caching --scheduler-cls my_scheduler.DLAScheduler"
LOAD = "--dataset-name random --random-input-len 8 --random-output-len 4 --num-prompts 400"
LOAD += " --request-rate 1 --save-result --save-detailed --disable-tqdm"
BAD_PREDICTIONS = [
    *(0, -1, 0.5, "12", "", "long", True, None, [], [3], {"a": 1}, 10**400, -(10**400)),
    *(float("nan"), float("inf"), 1e308, [[1]], "\ud800"),
]


@dataclass
class LiveRun:
    """A run of the real runner; ``process`` is the runner."""

    folder: Path
    port: int
    process: subprocess.Popen
    started: list[psutil.Process] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def find(self, *words: str) -> psutil.Process:
        """The one process of this run with all ``words`` in its command line."""
        found = []
        for process in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                line = " ".join(process.cmdline())
                if all(word in line for word in words) and "supervisor.py" not in line:
                    found.append(process)
        assert len(found) == 1, (words, found)
        return found[0]

    def wait_until_in_mid_run(self) -> None:
        """Return when the bench has had its first answers."""
        log = self.folder / "r1-r1/bench.log"

        def begun() -> bool:
            assert self.process.poll() is None, "the runner ended by itself"
            return log.exists() and "Starting main benchmark" in log.read_text()

        wait_until(begun, "the bench", START_S)
        self.started = psutil.Process(self.process.pid).children(recursive=True)

    def ends_as_failed(self) -> dict[str, Any]:
        """The run's run.json, after the runner has ended with exit code 1 and left nothing."""
        assert self.process.wait(timeout=120) == 1
        _, alive = psutil.wait_procs(self.started, timeout=30)
        assert alive == []
        run = json.loads((self.folder / "r1-r1/run.json").read_text())
        assert run["status"] == "failed"
        return run

    def log(self) -> str:
        return (self.folder / "servers/r1.log").read_text(errors="replace")


@contextlib.contextmanager
def live_run(model: Path, folder: Path, *options: str, predictor: str = "") -> Iterator[LiveRun]:
    """Runner, server and bench in mid-run; whatever happens, nothing stays."""
    port = free_port()
    at = ["--host", "127.0.0.1", "--port", str(port)]
    serve = ["env", f"LAB3_PREDICTOR={predictor}", VLLM, "serve", str(model), *at]
    bench = [VLLM, "bench", "serve", "--model", str(model), *at, *LOAD.split()]
    times = ["--timeout-s", "10", "--run-timeout-s", "500", "--start-timeout-s", "600"]
    command = [sys.executable, "-m", "lab3.run", str(folder), "--task", "faults", "--arm", "r1"]
    command += [*times, "--parent-pid", str(os.getpid())]
    command += ["--serve", *serve, *ENGINE.split(), *options, "--bench", *bench]
    env = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1", "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, cwd=ROOT, env=env) as process:
        run = LiveRun(folder, port, process)
        try:
            run.wait_until_in_mid_run()
            yield run
        finally:
            # The supervisors end with the runner and take everything with them.
            process.kill()
            psutil.wait_procs(run.started, timeout=60)


def completion(prompt: str = "abc", **more: Any) -> dict[str, Any]:
    return {"prompt": prompt, "max_tokens": 4, "temperature": 0, "ignore_eos": True} | more


async def post(session: aiohttp.ClientSession, body: Any) -> tuple[int, str]:
    """Status and text of one completion; ``body`` is sent as JSON in Python's dialect."""
    headers = {"content-type": "application/json"}
    async with session.post("/v1/completions", data=json.dumps(body), headers=headers) as answer:
        return answer.status, await answer.text()


async def metrics(session: aiohttp.ClientSession) -> Sample:
    async with session.get("/metrics") as answer:
        return parse_sample(await answer.text(), 0.0)


async def assert_nothing_is_held(session: aiohttp.ClientSession) -> Sample:
    """The pool is empty, nobody runs or waits, and the next request is answered."""
    for _ in range(240):
        sample = await metrics(session)
        # A request of the bench may be there at any moment, but never for long.
        if not sample.is_busy and set(sample.kv_usage.values()) == {0.0}:
            break
        await asyncio.sleep(0.25)
    else:
        pytest.fail(f"blocks or requests are left: {sample}")
    status, text = await post(session, completion())
    assert status == 200
    assert json.loads(text)["usage"]["completion_tokens"] == 4
    return sample


def nonsense(pick: random.Random) -> dict[str, Any]:
    """A request with something wrong in it, mostly in its prediction."""
    body = completion(max_tokens=pick.randrange(1, 12))
    kind = pick.randrange(4)
    if kind < 2:
        body["vllm_xargs"] = {"predicted_length": pick.choice(BAD_PREDICTIONS)}
    elif kind == 2:
        body["vllm_xargs"] = pick.choice([None, 7, "text", [1], {}, {"": 1}, {"client": None}])
    else:
        wrong = {"prompt": [7, None, [], [[]], {"a": 1}, [10**9]], "max_tokens": [-1, 0, "x", 1e9],
                 "n": [0, -1, 99], "temperature": [-1, "hot"], "stream": ["yes", 3]}  # fmt: skip
        name = pick.choice(sorted(wrong))
        body[name] = pick.choice(wrong[name])
    return body


async def send_nonsense(url: str, count: int, seed: int) -> list[tuple[dict, int, str]]:
    """(body, status, text) of ``count`` bad requests, eight at a time."""
    pick, gate = random.Random(seed), asyncio.Semaphore(8)
    async with aiohttp.ClientSession(url) as session:

        async def one(body: dict) -> tuple[dict, int, str]:
            async with gate:
                return body, *await post(session, body)

        answers = await asyncio.gather(*(one(nonsense(pick)) for _ in range(count)))
        await assert_nothing_is_held(session)
        return answers


def bad_prediction(body: dict) -> bool:
    xargs = body.get("vllm_xargs")
    return isinstance(xargs, dict) and "predicted_length" in xargs and (
        xargs["predicted_length"] not in (10**400, 1e308)
    )  # fmt: skip


ANSWERED = {200, 400, 500}
"""500 is vLLM's own answer to some nonsense, but an answer."""


async def storm(session: aiohttp.ClientSession, pick: random.Random, clients: int) -> None:
    """``clients`` at once ask for answers that fill the pool, and most leave in the middle."""

    async def one(stay_s: float, stream: bool) -> None:
        tokens = pick.randrange(60, 150)
        body = completion("x" * pick.randrange(5, 40), max_tokens=tokens, stream=stream)
        with contextlib.suppress(TimeoutError, aiohttp.ClientError):
            async with asyncio.timeout(stay_s):
                await post(session, body)

    stays = [pick.choice([0.01, 0.1, 0.5, 1.0, 3.0]) * pick.random() for _ in range(clients)]
    await asyncio.gather(*(one(stay_s, bool(pick.randrange(2))) for stay_s in stays))


def test_nonsense_then_kill_9_of_the_engine(micro_model: Path, tmp_path: Path) -> None:
    """Verifies, without the predictor in front:

    1. no bad request ends the server or holds blocks, and bad predictions are ignored and counted,
    2. when the engine is killed the run is marked failed and nothing is left.
    """
    with live_run(micro_model, tmp_path) as run:
        answers = asyncio.run(send_nonsense(run.url, 1000, seed=1))
        assert {status for _, status, _ in answers} <= ANSWERED, answers
        served = [b for b, status, _ in answers if status == 200 and bad_prediction(b)]
        assert served, "vLLM itself takes some of them"
        wait_until(lambda: "'bad_predictions': " in run.log(), "the counters in the log", 30)
        run.find("VLLM::EngineCore").kill()
        reason = run.ends_as_failed()["reason"]
    assert "server" in reason or "requests failed" in reason


def test_kill_9_of_the_api_server(micro_model: Path, tmp_path: Path) -> None:
    """Verifies that the engine does not outlive it and that the run is marked failed."""
    with live_run(micro_model, tmp_path) as run:
        run.find("vllm", " serve ", "--scheduler-cls").kill()
        assert run.ends_as_failed()["reason"] == "the server ended with exit code 137"


def test_predictor_storms_and_kill_9_of_the_bench(micro_model: Path, tmp_path: Path) -> None:
    """Verifies, with the predictor in front:

    1. a malformed prediction gets HTTP 400 with its own text; nothing else is refused by it,
    2. wave after wave of clients that leave while KV blocks are short, the pool is empty again,
    3. when the bench is killed the run is marked failed and nothing is left.
    """
    middleware = ["--middleware", "lab3.predictor.PredictLength"]
    with live_run(micro_model, tmp_path, *middleware, predictor="history:0.9") as run:
        answers = asyncio.run(send_nonsense(run.url, 1000, seed=2))
        assert {status for _, status, _ in answers} <= ANSWERED, answers
        for body, status, text in answers:
            refused = "vllm_xargs.predicted_length must be a number of 1 or more" in text
            assert refused == bad_prediction(body), (body, text)
            assert not refused or status == 400
        asyncio.run(storms(run.url, waves=10, clients=60))
        page = asyncio.run(get(run.url, "/metrics"))
        assert 'lab3:predictor_requests_total{outcome="refused"}' in page
        run.find(" bench serve ").kill()
        reason = run.ends_as_failed()["reason"]
    assert reason.startswith("the bench ended with exit code")


async def storms(url: str, waves: int, clients: int) -> None:
    pick = random.Random(3)
    async with aiohttp.ClientSession(url, connector=aiohttp.TCPConnector(limit=0)) as session:
        before = await metrics(session)
        for _ in range(waves):
            await storm(session, pick, clients)
            after = await assert_nothing_is_held(session)
        assert after.num_preemptions > before.num_preemptions, "the pool was never short"


async def get(url: str, path: str) -> str:
    async with aiohttp.ClientSession(url) as session, session.get(path) as answer:
        return await answer.text()

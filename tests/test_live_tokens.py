"""A scheduler decides when a token is computed, never which: real servers answer alike."""

import asyncio
import random
import shutil
from pathlib import Path

import aiohttp
import pytest
from test_server import free_port

from lab3.commands import ServeCommand
from lab3.measure import child_env
from lab3.processes import Supervised
from lab3.server import prove_scheduler, wait_until_ready

pytestmark = pytest.mark.live

ALPHABET = "abcdefghijklmnopqrstuvwxyz ,."
NUM_REQUESTS, OUTPUT_TOKENS = 20, 48
CLASSES = [
    None,
    "my_scheduler.StepExclusivePrefillFirstScheduler",
    "my_scheduler.SJFScheduler",
]


def prompts() -> list[str]:
    pick = random.Random(7)
    lengths = [pick.randrange(20, 110) for _ in range(NUM_REQUESTS)]
    return ["".join(pick.choices(ALPHABET, k=length)) for length in lengths]


async def answers(server: Supervised, serve: ServeCommand) -> tuple[list[str], str]:
    """What the server says to all prompts at once, and its metrics page afterwards."""
    await wait_until_ready(server, serve, 240)
    async with aiohttp.ClientSession(serve.url) as session:

        async def ask(prompt: str) -> str:
            body = {
                **{"model": "m", "prompt": prompt, "temperature": 0, "ignore_eos": True},
                "max_tokens": OUTPUT_TOKENS,
            }
            async with session.post("/v1/completions", json=body) as response:
                return (await response.json())["choices"][0]["text"]

        texts = await asyncio.gather(*map(ask, prompts()))
        async with session.get("/metrics") as response:
            return list(texts), await response.text()


def preemptions(metrics: str) -> float:
    lines = metrics.splitlines()
    return sum(float(x.split()[-1]) for x in lines if x.startswith("vllm:num_preemptions_total"))


@pytest.mark.timeout(600)
def test_a_and_sjf_answer_as_the_default_when_kv_blocks_run_out(micro_model: Path, tmp_path: Path):
    """Verifies that with 4 seats and KV blocks for fewer:

    1. default, A and SJF give the same text to every prompt (float32, temperature 0),
    2. requests really were preempted, and the class asked for really ran,
    3. no process is left when a server is stopped.
    """
    said = {}
    for cls in CLASSES:
        words = [shutil.which("vllm"), "serve", str(micro_model), "--served-model-name", "m"]
        words += ["--host", "127.0.0.1", "--port", str(free_port()), "--dtype", "float32"]
        words += ["--enforce-eager", "--block-size", "32", "--num-gpu-blocks-override", "10"]
        words += ["--max-model-len", "192", "--max-num-seqs", "4"]
        words += ["--max-num-batched-tokens", "64", "--no-enable-prefix-caching"]
        words += ["--scheduler-cls", cls] if cls else []
        serve, log = ServeCommand.read(words), tmp_path / f"{cls}.log"
        with Supervised(words, log, child_env() | {"VLLM_CPU_KVCACHE_SPACE": "1"}) as server:
            said[cls], metrics = asyncio.run(answers(server, serve))
            family = server.family()
        assert preemptions(metrics) > 0, cls
        prove_scheduler(log.read_text(), serve)
        assert len(family) >= 2
        assert not [process for process in family if process.is_running()]

    assert len(set(said[None])) == NUM_REQUESTS
    assert said[CLASSES[1]] == said[None]
    assert said[CLASSES[2]] == said[None]

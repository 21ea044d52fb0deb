"""Serves one workload with vLLM's real engine under every scheduler; writes what it said as JSON.

    python tests/real_engine.py MODEL_DIR OUT.json      (with ENVIRONMENT, PYTHONPATH=.)

A process of its own, because the engines run inside it, one after the other: only the first has
to load libraries. The workload mixes greedy requests, pairs (``n=2``) and structured output;
there are four seats, KV blocks for about two long requests and a budget that cuts most prompts.
"""

import gc
import json
import random
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fuzz import Policy
from fuzz_policies import POLICIES
from vllm import LLM, SamplingParams
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    # One thread: two wait for each other in every kernel, ten times as long on a busy machine.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
}
ALPHABET = "abcdefghijklmnopqrstuvwxyz ,."
NUM_REQUESTS, PAIR, STRUCTURED = 12, 2, 3
REGEX = "[a-f]{20}"
MODES: dict[str, dict[str, Any]] = {
    "plain": {},
    "prefix-caching": {"enable_prefix_caching": True},
}
# An engine takes seconds to start: one policy of each class, and some of them in the other modes.
ONE_A_CLASS = tuple({policy.cls: policy for policy in reversed(POLICIES)}.values())[::-1]
SOME = tuple(
    policy
    for policy in ONE_A_CLASS
    if policy.name in ("default", "prefill-first", "adaptive", "dla", "dla-srpt")
)
ARMS = {mode: ONE_A_CLASS if mode == "plain" else SOME for mode in MODES}
PREDICTIONS = (48, 20, 90, 3, None, "12", float("nan"))


class KeepsLostKV(Scheduler):
    """Broken on purpose: takes a preempted request's KV for still there when it resumes."""

    def _preempt_request(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super()._preempt_request(request, *args, **kwargs)
        request.num_computed_tokens = request.num_tokens - 1


BROKEN = Policy("broken", KeepsLostKV)


def workload() -> Iterator[tuple[str, SamplingParams]]:
    """Prompt and parameters of each request; the same in every process."""
    pick = random.Random(7)
    for number in range(NUM_REQUESTS):
        prompt = "".join(pick.choices(ALPHABET, k=pick.randrange(20, 120)))
        predicted = PREDICTIONS[number % len(PREDICTIONS)]
        params = SamplingParams(
            temperature=0,
            max_tokens=pick.randrange(24, 48),
            ignore_eos=True,
            extra_args={"client": "ab"[number % 2]}
            | ({"predicted_length": predicted} if predicted else {}),
        )
        if number % 4 == PAIR:
            # Sampling that has no choice: vLLM refuses n=2 at temperature 0, and seeds kill its
            # CPU engine when a prompt is cut ("CPU Generator does not use offset").
            params.n, params.temperature, params.top_k = 2, 1.0, 1
        if number % 4 == STRUCTURED:
            params.structured_outputs = StructuredOutputsParams(regex=REGEX)
            params.ignore_eos = False
        yield prompt, params


def serve(model: Path, mode: str, policy: Policy) -> dict[str, Any]:
    """What the engine says to the workload, with the scheduler's name and its preemptions."""
    llm = LLM(
        str(model),
        dtype="float32",
        enforce_eager=True,
        block_size=32,
        num_gpu_blocks_override=10,
        max_model_len=192,
        max_num_seqs=4,
        max_num_batched_tokens=64,
        scheduler_cls=policy.cls,
        additional_config={"lab3": dict(policy.settings)},
        **{"enable_prefix_caching": False} | MODES[mode],
    )
    core = llm.llm_engine.engine_core.engine_core
    scheduler, counts = core.scheduler, Counter()
    schedule, preempt = scheduler.schedule, scheduler._preempt_request

    def counting_schedule(*args: Any, **kwargs: Any) -> SchedulerOutput:
        output = schedule(*args, **kwargs)
        counts["chunks"] += sum(r.is_prefill_chunk for r in scheduler.running)
        return output

    def counting_preempt(*args: Any, **kwargs: Any) -> None:
        counts["preemptions"] += 1
        preempt(*args, **kwargs)

    scheduler.schedule, scheduler._preempt_request = counting_schedule, counting_preempt
    prompts, params = zip(*workload(), strict=True)
    answers = llm.generate(list(prompts), list(params), use_tqdm=False)
    kv_usage = scheduler.get_kv_cache_usage()
    core.shutdown()
    return {
        "class": type(scheduler).__name__,
        "counts": counts,
        "kv_usage": kv_usage,
        "tokens": [[list(o.token_ids) for o in answer.outputs] for answer in answers],
        "texts": [[o.text for o in answer.outputs] for answer in answers],
    }


def main(model: Path, out: Path) -> None:
    # What is imported stays: without this every engine start looks through all of it, nine times.
    gc.freeze()
    said: dict[str, dict[str, Any]] = {}
    for mode in MODES:
        for policy in (*ARMS[mode], BROKEN) if mode == "plain" else ARMS[mode]:
            said.setdefault(mode, {})[policy.name] = serve(model, mode, policy)
            gc.collect()
    out.write_text(json.dumps(said))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

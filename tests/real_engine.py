"""Serves one workload with vLLM's real engine under every scheduler; writes what it said as JSON.

    python tests/real_engine.py MODEL_DIR OUT.json      (with ENVIRONMENT, PYTHONPATH=.)

Every engine runs in a fork of this process, which has loaded the libraries and started none: vLLM
can't start a second engine after one with ngram drafts. The workload mixes greedy requests, pairs
(``n=2``) and structured output; there are four seats, KV blocks for about two long requests and a
budget that cuts most prompts.
"""

import itertools
import json
import multiprocessing
import random
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from fuzz import Policy
from fuzz_policies import POLICIES
from safetensors.torch import save_file
from transformers import AutoConfig
from vllm import LLM, SamplingParams
from vllm.lora.request import LoRARequest
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
DRAFT_TOKENS = 3
MODES: dict[str, dict[str, Any]] = {
    "plain": {},
    "prefix-caching": {"enable_prefix_caching": True},
    "ngram": {
        "speculative_config": {
            "method": "ngram",
            "num_speculative_tokens": DRAFT_TOKENS,
            "prompt_lookup_min": 1,
            "prompt_lookup_max": 3,
        }
    },
    # One adapter at a time: a request with the other one has to wait.
    "lora": {"enable_lora": True, "max_loras": 1, "max_lora_rank": 8},
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


def workload(mode: str) -> Iterator[tuple[str, SamplingParams]]:
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
        # With ngram drafts vLLM's CPU sampler dies of top_k ("max(): Expected reduction dim").
        if number % 4 == PAIR and mode != "ngram":
            # Sampling that has no choice: vLLM refuses n=2 at temperature 0, and seeds kill its
            # CPU engine when a prompt is cut ("CPU Generator does not use offset").
            params.n, params.temperature, params.top_k = 2, 1.0, 1
        if number % 4 == STRUCTURED:
            params.structured_outputs = StructuredOutputsParams(regex=REGEX)
            params.ignore_eos = False
        yield prompt, params


def build_adapter(model: Path, seed: int) -> Path:
    """A LoRA adapter for ``model``, large enough to change its words; beside the model."""
    folder, rank, random_numbers = model.parent / f"adapter-{seed}", 8, torch.Generator()
    random_numbers.manual_seed(seed)
    config = AutoConfig.from_pretrained(model)
    heads = {"q_proj": config.num_attention_heads, "v_proj": config.num_key_value_heads}
    weights = {}
    for layer, (name, count) in itertools.product(range(config.num_hidden_layers), heads.items()):
        path = f"base_model.model.model.layers.{layer}.self_attn.{name}"
        for part, shape in (
            ("lora_A", (rank, config.hidden_size)),
            ("lora_B", (count * config.head_dim, rank)),
        ):
            weights[f"{path}.{part}.weight"] = torch.randn(shape, generator=random_numbers)
    folder.mkdir()
    save_file(weights, folder / "adapter_model.safetensors")
    description = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": [*heads]}
    (folder / "adapter_config.json").write_text(json.dumps(description | {"bias": "none"}))
    return folder


def serve(model: Path, adapters: list[Path], mode: str, policy: Policy) -> dict[str, Any]:
    """What the engine says to the workload, and what its scheduler did."""
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
        counts["drafts"] += sum(map(len, output.scheduled_spec_decode_tokens.values()))
        loras = {r.lora_request.name for r in scheduler.running if r.lora_request}
        counts["adapters_at_once"] = max(counts["adapters_at_once"], len(loras))
        return output

    def counting_preempt(*args: Any, **kwargs: Any) -> None:
        counts["preemptions"] += 1
        preempt(*args, **kwargs)

    scheduler.schedule, scheduler._preempt_request = counting_schedule, counting_preempt
    prompts, params = zip(*workload(mode), strict=True)
    # None goes without: vLLM's CPU kernels take "no adapter", slot -1, for the last slot (#48421).
    loras = [LoRARequest(path.name, 1 + i, str(path)) for i, path in enumerate(adapters)]
    answers = llm.generate(
        list(prompts),
        list(params),
        use_tqdm=False,
        lora_request=[loras[i % 2] for i in range(NUM_REQUESTS)] if mode == "lora" else None,
    )
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
    adapters = [build_adapter(model, seed) for seed in (1, 2)]
    runs = [(mode, policy) for mode, policies in ARMS.items() for policy in policies]
    runs.append(("plain", BROKEN))
    said: dict[str, dict[str, Any]] = {mode: {} for mode in MODES}
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        work = [(model, adapters, mode, policy) for mode, policy in runs]
        for (mode, policy), answer in zip(
            runs, pool.starmap(serve, work, chunksize=1), strict=True
        ):
            said[mode][policy.name] = answer
    out.write_text(json.dumps(said))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

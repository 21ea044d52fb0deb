"""The vLLM plan: ``LLM.generate`` with all prompts at once, KV use recorded by our scheduler."""

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from vllm import LLM, SamplingParams

from lab3.kv_peak import read_kv_peak
from lab3.task1 import memory
from lab3.task1.job import EOS, PLANS, Job
from lab3.task1.progress import ReportingBar
from lab3.task1.vllm_record import kv_between

WARMUP_TOKENS = 8
SCHEDULER = "my_scheduler.KVPeakScheduler"


class VllmPlan:
    """One engine and its measured passes; ``describe`` goes into the result."""

    def __init__(self, job: Job) -> None:
        """Starts the engine; the record of KV use goes to ``$LAB3_KV_FILE``."""
        self._job = job
        self._kv_file = Path(os.environ["LAB3_KV_FILE"])
        self._llm = LLM(
            model=job.model,
            dtype=job.dtype,
            max_model_len=max(map(len, job.prompts)) + job.max_new_tokens,
            max_num_seqs=max(len(job.prompts), 16),
            # Prompts of one template share their first tokens; HF computes them every time.
            enable_prefix_caching=False,
            scheduler_cls=SCHEDULER,
            additional_config={"lab3": {"kv_peak_file": str(self._kv_file)}},
            worker_extension_cls="lab3.task1.memory.DeviceMemoryProbe",
            disable_log_stats=False,  # the times of each request's tokens are part of the stats
            **job.engine_args,
        )

    def warm_up(self) -> None:
        """A short run, so that the first measured step pays for no lazy initialisation."""
        rows = [row[:16] for row in self._job.prompts[:2]]
        self._generate(rows, self._sampling(WARMUP_TOKENS, stop_at_eos=False), use_tqdm=False)

    def describe(self) -> dict[str, Any]:
        cache = self._llm.llm_engine.vllm_config.cache_config
        return {
            "batch": len(self._job.prompts),
            "kv_block_size": cache.block_size,
            # Block 0 is vLLM's null block.
            "kv_pool_tokens": (cache.num_gpu_blocks - 1) * cache.block_size,
        }

    def run(self, mode: str) -> dict[str, Any]:
        """One measured pass over all prompts, handed in together."""
        job = self._job
        memory.reset_peak(job.device, self._llm)
        bar = partial(_named_bar, f"{PLANS[job.plan]}, {mode}")
        sampling = self._sampling(job.max_new_tokens, mode == EOS)
        started = time.monotonic()
        outputs = self._generate(job.prompts, sampling, use_tqdm=bar)
        ended = time.monotonic()
        return {
            "mode": mode,
            "wall_s": ended - started,
            "outputs": [list(output.outputs[0].token_ids) for output in outputs],
            # The engine stamps tokens with the same monotonic clock, in another process.
            "finish_s": [output.metrics.last_token_ts - started for output in outputs],
            "batches": [],
            "peak_memory_bytes": memory.peak_bytes(job.device, self._llm),
            "kv": kv_between(read_kv_peak(self._kv_file), started, ended),
        }

    def _generate(
        self, rows: list[list[int]], sampling: SamplingParams, use_tqdm: Callable[..., Any] | bool
    ) -> list[Any]:
        prompts = [{"prompt_token_ids": row} for row in rows]
        return self._llm.generate(prompts, sampling, use_tqdm=use_tqdm)

    def _sampling(self, new_tokens: int, stop_at_eos: bool) -> SamplingParams:
        # The stop ids are given, so that both engines stop at the same ones: vLLM by itself takes
        # the tokenizer's, HF those of the generation config.
        return SamplingParams(
            temperature=0.0,
            max_tokens=new_tokens,
            ignore_eos=True,
            stop_token_ids=self._job.eos_token_ids if stop_at_eos else None,
            detokenize=False,
        )


def _named_bar(name: str, prompts: Any = None, *, total: int = 0, **_: Any) -> Any:
    # vLLM asks for two bars: over the prompts while it takes them in, then over the answers.
    return ReportingBar(total, name, "prompts") if prompts is None else prompts

"""The Hugging Face plans: ``generate`` one by one, in one padded batch, in batches of like length.

All three are the same loop over batches of rows; only how the rows are grouped differs.
"""

import time
from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, StoppingCriteria
from transformers.utils import logging as transformers_logging

from lab3.task1 import memory
from lab3.task1.batch_search import DoesNotFitError, fits, free_memory, largest_batch
from lab3.task1.job import EOS, PLANS, Job
from lab3.task1.progress import ReportingBar

WARMUP_TOKENS = 8


def left_pad(rows: Sequence[Sequence[int]], pad_token_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and attention mask, both (rows, longest row), padded on the left.

    On the right the padding would stand between a prompt and its first new token.
    """
    width = max(map(len, rows))
    ids = torch.full((len(rows), width), pad_token_id, dtype=torch.long)
    mask = torch.zeros((len(rows), width), dtype=torch.long)
    for i, row in enumerate(rows):
        ids[i, width - len(row) :] = torch.tensor(row)
        mask[i, width - len(row) :] = 1
    return ids, mask


def cut_at_eos(tokens: list[int], eos_token_ids: Sequence[int]) -> list[int]:
    """``tokens`` up to and with the first end-of-sequence token: what follows is padding."""
    ends = [i for i, token in enumerate(tokens) if token in eos_token_ids]
    return tokens[: ends[0] + 1] if ends else tokens


def group_rows(plan: str, prompt_lens: Sequence[int], batch: int) -> list[list[int]]:
    """Indices of the prompts, batch by batch, in the order they run."""
    order = list(range(len(prompt_lens)))
    if plan == "hf-static-sorted":
        order.sort(key=lambda i: (prompt_lens[i], i))
    return [order[i : i + batch] for i in range(0, len(order), batch)]


class _StepWatcher(StoppingCriteria):
    """Never stops anything; moves the progress bar once a decoding step."""

    def __init__(self, bar: Any) -> None:
        self._bar = bar

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        self._bar.update(len(input_ids))
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


class HFPlan:
    """One model in this process and the loop over batches; ``describe`` goes into the result."""

    def __init__(self, job: Job) -> None:
        transformers_logging.disable_progress_bar()
        self._job = job
        if job.device == "cpu":
            torch.set_num_threads(len(memory.all_cores()))
        self._model = AutoModelForCausalLM.from_pretrained(
            job.model, dtype=getattr(torch, job.dtype)
        )
        self._model.to(job.device).eval()
        self._batch = {"hf-serial": 1, "hf-static-sorted": job.sorted_batch}.get(
            job.plan, len(job.prompts)
        )
        if job.plan != "hf-serial" and job.max_batch:
            self._batch = min(self._batch, job.max_batch)
        self._search_s, self._tries = 0.0, []

    def warm_up(self) -> None:
        """A short run, so that the first measured step pays for no lazy initialisation."""
        rows = [row[:16] for row in self._job.prompts[: min(2, self._batch)]]
        self._generate(rows, WARMUP_TOKENS, stop_at_eos=False)
        free_memory()
        if self._job.memory_limit_gib:
            memory.limit_memory(self._job.memory_limit_gib, self._job.device)

    def describe(self) -> dict[str, Any]:
        return {"batch": self._batch, "search_s": self._search_s, "tries": self._tries}

    def run(self, mode: str) -> dict[str, Any]:
        """One measured pass over all prompts; shrinks the batch until it fits the memory."""
        while True:
            measured: list[dict[str, Any]] = []
            memory.reset_peak(self._job.device)
            if fits(lambda _, out=measured: out.append(self._pass(mode)), self._batch):
                return measured[0] | {"peak_memory_bytes": memory.peak_bytes(self._job.device)}
            self._tries.append([self._batch, False])
            self._shrink()

    def _shrink(self) -> None:
        """Search below the batch that has just failed, with the longest prompts as the probe."""
        if self._batch == 1:
            raise DoesNotFitError("does not fit: not even a batch of 1")
        started = time.monotonic()
        longest = sorted(self._job.prompts, key=len, reverse=True)
        self._batch = largest_batch(
            lambda batch: self._generate(longest[:batch], self._job.max_new_tokens, False),
            self._batch - 1,
            lambda batch, fitted: self._tries.append([batch, fitted]),
        )
        self._search_s += time.monotonic() - started

    def _pass(self, mode: str) -> dict[str, Any]:
        job, prompts = self._job, self._job.prompts
        outputs: list[list[int]] = [[] for _ in prompts]
        finish_s = [0.0] * len(prompts)
        batches = []
        total = len(prompts) * job.max_new_tokens
        with ReportingBar(total, f"{PLANS[job.plan]}, {mode}", "tok") as bar:
            started = time.monotonic()
            for rows in group_rows(job.plan, [len(p) for p in prompts], self._batch):
                new = self._generate(
                    [prompts[i] for i in rows], job.max_new_tokens, mode == EOS, bar
                )
                done_s = time.monotonic() - started
                for i, tokens in zip(rows, new, strict=True):
                    outputs[i] = cut_at_eos(tokens, job.eos_token_ids) if mode == EOS else tokens
                    finish_s[i] = done_s
                width = max(len(prompts[i]) for i in rows)
                batches.append({"rows": rows, "width": width, "steps": len(new[0])})
        return {
            "mode": mode,
            "wall_s": finish_s[rows[-1]],
            "outputs": outputs,
            "finish_s": finish_s,
            "batches": batches,
        }

    def _generate(
        self, rows: Sequence[Sequence[int]], new_tokens: int, stop_at_eos: bool, bar: Any = None
    ) -> list[list[int]]:
        """New tokens of each row, (rows, steps), equally long: early rows end in padding."""
        ids, mask = left_pad(rows, self._job.pad_token_id)
        # No eos id at all for the fixed length: `min_new_tokens` would forbid the token instead,
        # and the text would part from vLLM's, which may produce it and go on.
        self._model.generation_config = GenerationConfig(
            do_sample=False,
            max_new_tokens=new_tokens,
            pad_token_id=self._job.pad_token_id,
            eos_token_id=self._job.eos_token_ids if stop_at_eos else None,
        )
        with torch.inference_mode():
            output = self._model.generate(
                input_ids=ids.to(self._job.device),
                attention_mask=mask.to(self._job.device),
                stopping_criteria=[_StepWatcher(bar)] if bar is not None else None,
            )
        return output[:, ids.shape[1] :].tolist()

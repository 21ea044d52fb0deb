"""The real vLLM scheduler and KV manager without a model, weights or network.

    scheduler = create_scheduler("my_scheduler.SJFScheduler", num_blocks=64, max_num_seqs=8)
    requests = create_requests(20, prompt_tokens=100, output_tokens=16)

``StubModel`` stands in for the model runner: one token for each request whose prefill is
complete. ``lab3.driver`` runs engine steps on top. Tests, the overhead measurement and the
simulator share the two files.
"""

import json
import logging
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    LoRAConfig,
    ModelConfig,
    SchedulerConfig,
    SpeculativeConfig,
    VllmConfig,
)
from vllm.lora.request import LoRARequest
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

EOS_TOKEN_ID = 1
_FIRST_TOKEN_ID, _NUM_TOKEN_IDS = 1000, 50_000


def create_vllm_config(
    cls: type | str | None = None,
    *,
    num_blocks: int = 1024,
    block_size: int = 16,
    max_num_seqs: int = 16,
    max_num_batched_tokens: int = 2048,
    max_model_len: int | None = None,
    max_num_active_seqs: int | None = None,
    enable_prefix_caching: bool = False,
    enable_chunked_prefill: bool = True,
    policy: str = "fcfs",
    async_scheduling: bool = False,
    long_prefill_token_threshold: int = 0,
    watermark: float = 0.0,
    reserve_full_isl: bool = True,
    num_spec_tokens: int = 0,
    max_loras: int = 0,
    settings: Mapping[str, Any] | None = None,
) -> VllmConfig:
    """The configuration behind ``create_scheduler``; see there for the knobs."""
    if max_model_len is None:
        max_model_len = (num_blocks - 1) * block_size
        if not enable_chunked_prefill:
            max_model_len = min(max_model_len, max_num_batched_tokens)
    model_config = _model_config(max_model_len)
    with _quiet():
        config = VllmConfig(
            model_config=model_config,
            device_config=DeviceConfig("cpu"),
            cache_config=CacheConfig(
                block_size=block_size, enable_prefix_caching=enable_prefix_caching
            ),
            scheduler_config=SchedulerConfig(
                scheduler_cls=cls,
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=max_num_batched_tokens,
                max_model_len=max_model_len,
                max_num_active_seqs=max_num_active_seqs,
                is_encoder_decoder=False,
                enable_chunked_prefill=enable_chunked_prefill,
                policy=policy,
                long_prefill_token_threshold=long_prefill_token_threshold,
                watermark=watermark,
                scheduler_reserve_full_isl=reserve_full_isl,
            ),
            additional_config={"lab3": dict(settings or {})},
        )
        if num_spec_tokens:
            config.speculative_config = SpeculativeConfig(
                method="ngram",
                num_speculative_tokens=num_spec_tokens,
                prompt_lookup_max=2,
                target_model_config=model_config,
                target_parallel_config=config.parallel_config,
            )
    if max_loras:
        config.lora_config = LoRAConfig(max_loras=max_loras, max_cpu_loras=max_loras)
    # Set after VllmConfig's checks, which turn it off on a CPU: no model runs here.
    config.scheduler_config.async_scheduling = async_scheduling
    config.cache_config.num_gpu_blocks = num_blocks
    return config


def create_scheduler(
    cls: type | str | None = None,
    *,
    block_size: int = 16,
    num_blocks: int = 1024,
    runner_v2: bool = False,
    log_stats: bool = False,
    **knobs: Any,
) -> Scheduler:
    """A real scheduler of class ``cls`` with a KV pool of ``num_blocks`` blocks.

    Args:
        cls: scheduler class, its dotted name, or None for vLLM's own choice
            (``AsyncScheduler`` when ``async_scheduling``, else ``Scheduler``).
        block_size: tokens a KV block holds.
        num_blocks: blocks of the pool, one of which vLLM keeps as its null block.
        runner_v2: hand resumed requests to the model as new ones, as for model runner V2.
        log_stats: collect vLLM's statistics; off, since they cost time.
        knobs: vLLM's names (``max_num_seqs``, ``max_num_batched_tokens``, ``max_model_len``:
            default all that the pool holds, ``max_num_active_seqs``, ``enable_prefix_caching``,
            ``enable_chunked_prefill``, ``policy`` "fcfs" or "priority", ``async_scheduling``,
            ``long_prefill_token_threshold``, ``watermark`` a share of the pool), and
            ``reserve_full_isl``, ``num_spec_tokens``, ``max_loras``, ``settings``
            (the "lab3" part of ``--additional-config``).

    Raises:
        ValueError: vLLM or the class refuses the combination.
    """
    config = create_vllm_config(cls, block_size=block_size, num_blocks=num_blocks, **knobs)
    group = KVCacheGroupSpec(
        ["layer"],
        FullAttentionSpec(block_size=block_size, num_kv_heads=1, head_size=1, dtype=torch.float32),
    )
    with _quiet():
        scheduler = config.scheduler_config.get_scheduler_cls()(
            vllm_config=config,
            kv_cache_config=KVCacheConfig(
                num_blocks=num_blocks, kv_cache_tensors=[], kv_cache_groups=[group]
            ),
            structured_output_manager=StructuredOutputManager(config),
            block_size=block_size,
            log_stats=log_stats,
        )
    scheduler.use_v2_model_runner = runner_v2
    return scheduler


def create_requests(
    num_requests: int,
    *,
    prompt_tokens: int | Sequence[int] = 32,
    output_tokens: int | Sequence[int] = 16,
    priority: int | Sequence[int] = 0,
    arrival_s: float | Sequence[float] | None = None,
    extra_args: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None = None,
    lora_id: int | Sequence[int] = 0,
    structured: bool | Sequence[bool] = False,
    ignore_eos: bool = True,
    shared_prefix_tokens: int = 0,
    same_prompt: bool = False,
    first_id: int = 0,
) -> list[Request]:
    """``num_requests`` requests with ids "0", "1", ... from ``first_id`` on.

    Every quantity is one value for all or a sequence with one value each.

    Args:
        prompt_tokens: prompt length in tokens.
        output_tokens: ``max_tokens``; a shorter true output is ``StubModel``'s business.
        arrival_s: arrival times; default 0, 1, 2, ... ms by id.
        extra_args: ``SamplingParams.extra_args``, e.g. ``{"predicted_length": 80}``.
        lora_id: adapter number, 0 for none.
        structured: request constrained output; it waits until ``grammar_ready(request)``.
        ignore_eos: False lets ``StubModel`` end the output with ``EOS_TOKEN_ID``.
        shared_prefix_tokens: leading prompt tokens that all requests have in common.
        same_prompt: all prompts start with the same tokens (equal when equally long).
    """

    def nth(value: Any, index: int) -> Any:
        is_sequence = isinstance(value, Sequence)
        return value[index] if is_sequence else value

    requests = []
    for index in range(num_requests):
        number = first_id + index
        length = nth(prompt_tokens, index)
        num_shared = length if same_prompt else min(shared_prefix_tokens, length)
        own_token = _FIRST_TOKEN_ID + number
        params = SamplingParams(
            temperature=0.0,
            max_tokens=nth(output_tokens, index),
            ignore_eos=ignore_eos,
            extra_args=nth(extra_args, index),
            structured_outputs=(
                StructuredOutputsParams(regex="[0-9]+") if nth(structured, index) else None
            ),
        )
        params.update_from_generation_config({}, EOS_TOKEN_ID)
        lora = nth(lora_id, index)
        requests.append(
            Request(
                request_id=str(number),
                prompt_token_ids=[2] * num_shared + [own_token] * (length - num_shared),
                sampling_params=params,
                pooling_params=None,
                priority=nth(priority, index),
                arrival_time=number * 1e-3 if arrival_s is None else nth(arrival_s, index),
                lora_request=LoRARequest(str(lora), lora, "none") if lora else None,
            )
        )
    return requests


class _AnyTokens:
    """A grammar that accepts every token."""

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        return True

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        return tokens


def grammar_ready(request: Request) -> None:
    """End the grammar compilation that a ``structured`` request waits for."""
    request.structured_output_request._grammar = _AnyTokens()


def token_at(request_id: str, position: int) -> int:
    """The stub model's output token number ``position`` (from 0) of a request.

    A function of these two alone, so that any two schedulers must produce equal sequences.
    """
    seed = zlib.crc32(request_id.encode())
    return _FIRST_TOKEN_ID + (seed + 7919 * position) % _NUM_TOKEN_IDS


@dataclass
class StubModel:
    """Stands in for the model runner: which tokens a batch yields, nothing else.

    ``true_output_tokens`` (request id -> tokens) ends an output with ``EOS_TOKEN_ID`` at that
    length, if the request does not ignore it; the scheduler can't see this. With speculative
    decoding every second draft is accepted.
    """

    true_output_tokens: Mapping[str, int] = field(default_factory=dict)
    _next_position: dict[str, int] = field(default_factory=dict)

    def execute(self, scheduler: Scheduler, output: SchedulerOutput) -> ModelRunnerOutput:
        """The output of ``output``'s batch; call it right after ``schedule()``."""
        ids = list(output.num_scheduled_tokens)
        sampled = [self._sample(scheduler.requests[id_], output) for id_ in ids]
        return ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={id_: index for index, id_ in enumerate(ids)},
            sampled_token_ids=sampled,
        )

    def _sample(self, request: Request, output: SchedulerOutput) -> list[int]:
        if request.is_prefill_chunk:
            return []
        id_ = request.request_id
        num_drafts = len(output.scheduled_spec_decode_tokens.get(id_, ()))
        position = request.num_output_tokens
        # Placeholders beyond this batch's own: earlier tokens of the request are in flight.
        if request.num_output_placeholders > 1 + num_drafts:
            position = self._next_position[id_]
        end = position + 1 + num_drafts // 2
        self._next_position[id_] = end
        last = self.true_output_tokens.get(id_, 0) - 1
        return [EOS_TOKEN_ID if at == last else token_at(id_, at) for at in range(position, end)]


@contextmanager
def _quiet() -> Iterator[None]:
    """Drop vLLM's remarks on a configuration that no model will run with."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


@cache
def _model_dir() -> tempfile.TemporaryDirectory:
    # The smallest model that vLLM's configuration accepts; it is read, never built.
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": 64_000,
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 1 << 24,
        "eos_token_id": EOS_TOKEN_ID,
    }
    directory = tempfile.TemporaryDirectory(prefix="lab3-model-")
    Path(directory.name, "config.json").write_text(json.dumps(config))
    return directory


@cache
def _model_config(max_model_len: int) -> ModelConfig:
    with _quiet():
        return ModelConfig(
            model=_model_dir().name,
            skip_tokenizer_init=True,
            dtype="bfloat16",
            max_model_len=max_model_len,
        )

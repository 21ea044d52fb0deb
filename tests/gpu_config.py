"""Feeds `vllm serve` and `vllm bench serve` command lines to vLLM's own parsers and config checks.

    echo '[["vllm", "serve", ...], ...]' | python tests/gpu_config.py

Runs in its own process, since for `vllm serve` it makes vLLM believe in an NVIDIA H100 where there
is none: what a GPU decides (async scheduling, for one) is then decided as on a GPU. Only
configurations are made, never an engine. All lines must be of one kind. Prints one JSON object a
line; a refused one has the key "error".
"""

import argparse
import contextlib
import io
import json
import os
import sys
import tempfile
import types
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

# Sizes of Qwen/Qwen3-0.6B, as its config.json on the hub has them.
QWEN3_0_6B = {
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 151936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": True,
    "dtype": "bfloat16",
}


def pretend_h100() -> None:
    """Make vLLM's platform an H100; must run before anything asks for the platform."""
    # Compiled CUDA code that the CPU wheel lacks; only kernels need it.
    sys.modules.setdefault("vllm._C_stable_libtorch", types.ModuleType("no CUDA here"))
    import vllm.platforms
    from vllm.platforms.cuda import CudaPlatformBase
    from vllm.platforms.interface import DeviceCapability

    class PretendedH100(CudaPlatformBase):
        @classmethod
        def get_device_capability(cls, device_id: int = 0) -> DeviceCapability:
            return DeviceCapability(major=9, minor=0)

        @classmethod
        def get_device_name(cls, device_id: int = 0) -> str:
            return "NVIDIA H100"

        @classmethod
        def get_device_total_memory(cls, device_id: int = 0) -> int:
            return 80 << 30

        @classmethod
        def device_count(cls) -> int:
            return 1

    vllm.platforms._current_platform = PretendedH100()


def checked_serve(words: list[str], model_folder: str) -> dict[str, Any]:
    """What vLLM makes of the options of a `vllm serve` command line."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.usage.usage_lib import UsageContext
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    args = make_arg_parser(FlexibleArgumentParser()).parse_args(words)
    asked_model = args.model_tag
    # The config of the hub's model from a local folder; there is no tokenizer in it.
    args.model = args.model_tag = model_folder
    args.skip_tokenizer_init = True
    validate_parsed_serve_args(args)
    config = AsyncEngineArgs.from_cli_args(args).create_engine_config(
        UsageContext.OPENAI_API_SERVER
    )
    scheduler = config.scheduler_config
    cls = scheduler.get_scheduler_cls()
    return {
        "model": asked_model,
        "host": args.host,
        "port": args.port,
        "max_model_len": config.model_config.max_model_len,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "max_num_seqs": scheduler.max_num_seqs,
        "gpu_memory_utilization": config.cache_config.gpu_memory_utilization,
        "enable_prefix_caching": config.cache_config.enable_prefix_caching,
        "async_scheduling": scheduler.async_scheduling,
        "scheduler": f"{cls.__module__}.{cls.__name__}",
        "bases": [base.__name__ for base in cls.__mro__],
        "additional_config": config.additional_config,
    }


def checked_bench(words: list[str]) -> dict[str, Any]:
    """What vLLM makes of the options of a `vllm bench serve` command line."""
    from vllm.benchmarks.serve import add_cli_args
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser()
    add_cli_args(parser)
    args = vars(parser.parse_args(words))
    return {
        key: value if isinstance(value, (int, float, str, bool, list)) else repr(value)
        for key, value in args.items()
    }


def check(command: list[str], model_folder: str) -> dict[str, Any]:
    """The result for one command line, or its refusal."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            if command[:2] == ["vllm", "serve"]:
                return checked_serve(command[2:], model_folder)
            if command[:3] == ["vllm", "bench", "serve"]:
                return checked_bench(command[3:])
            raise ValueError(f"not a vLLM command: {command}")
    except SystemExit:
        return {"error": said.getvalue()}
    except (argparse.ArgumentError, ImportError, AttributeError, TypeError, ValueError) as error:
        return {"error": f"{type(error).__name__}: {error}"}


def main() -> None:
    """Read the command lines, print the results."""
    commands = json.load(sys.stdin)
    # The client's modules load compiled operations of the platform, and need no GPU.
    if any(command[1] == "serve" for command in commands):
        pretend_h100()
    from transformers import Qwen3Config

    with tempfile.TemporaryDirectory() as folder:
        Qwen3Config(**QWEN3_0_6B).save_pretrained(folder)
        results = [check(command, folder) for command in commands]
    print(json.dumps(results))


if __name__ == "__main__":
    main()

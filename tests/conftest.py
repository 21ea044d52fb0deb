"""Settings that every test runs under, and the model that the live ones serve."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from lab3 import local_model

# Before anything imports vLLM, which reads these once. Servers started by tests inherit them.
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1,localhost"

# Under nohup, or in the background of a script, these are ignored, and so they would be by every
# process that a test starts in order to interrupt it.
for _signal, _usual in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(_signal) is signal.SIG_IGN:
        signal.signal(_signal, _usual)


@pytest.fixture(scope="session")
def micro_model() -> Path:
    """Folder of the smallest local model, made on first use."""
    return local_model.build("micro")


@pytest.fixture(scope="session")
def parsers() -> tuple[Any, Any]:
    """vLLM's own parsers of the options of ``vllm serve`` and ``vllm bench serve``."""
    from vllm.benchmarks.serve import add_cli_args
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    bench = FlexibleArgumentParser()
    add_cli_args(bench)
    return make_arg_parser(FlexibleArgumentParser()), bench

"""The search for the largest batch, with fakes and with a real allocator that refuses."""

import subprocess
import sys
import weakref

import pytest
import torch

from lab3.task1.batch_search import (
    DoesNotFitError,
    fits,
    is_out_of_memory,
    largest_batch,
)

CUDA = torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
PLAIN = RuntimeError("CUDA error: out of memory")
CPU = RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to ...")


@pytest.mark.parametrize("error", [CUDA, PLAIN, CPU, MemoryError()], ids=lambda e: str(e)[:12])
@pytest.mark.parametrize("wanted", [13, 14, 25, 26, 64, 100])
def test_thirteen_does_not_fit_so_twelve_it_is(error: BaseException, wanted: int) -> None:
    tried: list[int] = []

    def run(batch: int) -> None:
        tried.append(batch)
        if batch >= 13:
            raise error

    assert largest_batch(run, wanted) == 12
    assert len(tried) == len(set(tried)), "no batch is tried twice"
    assert len(tried) <= 14


@pytest.mark.parametrize("limit", range(1, 65))
def test_every_limit_is_found(limit: int) -> None:
    def run(batch: int) -> None:
        if batch > limit:
            raise MemoryError

    assert largest_batch(run, 64) == limit


def test_all_fit_at_the_first_try() -> None:
    heard: list[tuple[int, bool]] = []
    assert largest_batch(lambda batch: None, 64, lambda *try_: heard.append(try_)) == 64
    assert heard == [(64, True)]


def test_one_does_not_fit() -> None:
    def run(batch: int) -> None:
        raise CUDA

    with pytest.raises(DoesNotFitError, match="does not fit"):
        largest_batch(run, 64)


def test_another_error_is_not_taken_for_full_memory() -> None:
    def run(batch: int) -> None:
        raise RuntimeError("shape mismatch")

    with pytest.raises(RuntimeError, match="shape mismatch"):
        largest_batch(run, 64)
    assert not is_out_of_memory(ValueError("out of memory"))


def test_what_a_failed_run_held_is_given_back() -> None:
    """The exception's traceback keeps the frame, and the frame keeps the tensors."""
    held: list[weakref.ref] = []

    def run(batch: int) -> None:
        kv_cache = torch.zeros(batch)
        held.append(weakref.ref(kv_cache))
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    assert not fits(run, 8)
    assert held[0]() is None


REAL_ALLOCATOR = """
import re
import torch
from lab3.task1.batch_search import largest_batch
from lab3.task1.memory import limit_memory

torch.zeros(2**22)  # starts the threads, whose stacks count as well
data_kib = int(re.search(r"VmData:\\s+(\\d+)", open("/proc/self/status").read())[1])
limit_memory(data_kib / 2**20 + 0.25, "cpu")
print(largest_batch(lambda batch: torch.zeros(batch, 2**20), 1000))  # 4 MiB a row
"""


def test_a_real_allocator_that_refuses() -> None:
    """256 MiB hold at most 64 rows of 4 MiB, and each try gets the memory of the last one back."""
    done = subprocess.run(
        [sys.executable, "-c", REAL_ALLOCATOR], capture_output=True, text=True, check=True
    )
    assert 40 <= int(done.stdout) <= 64

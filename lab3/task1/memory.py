"""Peak memory of a measured stretch: of the processes on a CPU, of the device on a GPU."""

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil


def process_tree() -> list[int]:
    """This process and everything it started (vLLM's engine is a process of its own)."""
    me = psutil.Process()
    return [me.pid, *(child.pid for child in me.children(recursive=True))]


def reset_peak_rss(pids: Iterable[int]) -> None:
    """Start a new peak at the memory resident now, so that loading does not count."""
    for pid in pids:
        try:
            Path(f"/proc/{pid}/clear_refs").write_text("5")
        except OSError:  # not Linux, or a locked-down container: the peak since the start stands
            continue


def peak_rss_bytes(pids: Iterable[int]) -> int:
    """Sum of the peak resident memory of ``pids`` since the last reset (pages they share twice)."""
    return sum(_peak_rss_bytes(pid) for pid in pids)


def _peak_rss_bytes(pid: int) -> int:
    try:
        found = re.search(r"^VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.M)
    except OSError:
        found = None
    if found:
        return int(found[1]) * 1024
    return psutil.Process(pid).memory_info().rss if psutil.pid_exists(pid) else 0


def limit_memory(gib: float, device: str) -> None:
    """Let this process allocate only ``gib`` GiB from here on: a smaller device than the real one.

    On a CPU it is a limit on the process's own data: code and mapped files do not count. Raises
    ValueError when the device has less.
    """
    if device == "cuda":
        import torch

        total = torch.cuda.get_device_properties(0).total_memory
        if gib * 2**30 > total:
            raise ValueError(f"the memory limit is above the device's {total / 2**30:.1f} GiB")
        torch.cuda.set_per_process_memory_fraction(gib * 2**30 / total)
        return
    import resource

    limit = int(gib * 2**30)
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


class DeviceMemoryProbe:
    """Mixed into vLLM's worker (``worker_extension_cls``): it alone sees the engine's allocator."""

    def reset_peak_device_memory(self) -> None:
        import torch

        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()

    def peak_device_memory_bytes(self) -> int:
        import torch

        return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0


def reset_peak(device: str, llm: Any = None) -> None:
    """Start a new peak for this plan; ``llm`` is the vLLM engine, None for Hugging Face."""
    if device != "cuda":
        reset_peak_rss(process_tree())
    elif llm is not None:
        llm.collective_rpc("reset_peak_device_memory")
    else:
        DeviceMemoryProbe.reset_peak_device_memory(None)  # type: ignore[arg-type]


def peak_bytes(device: str, llm: Any = None) -> int:
    """Peak bytes since ``reset_peak``: process memory on a CPU, device memory on a GPU."""
    if device != "cuda":
        return peak_rss_bytes(process_tree())
    if llm is not None:
        return sum(llm.collective_rpc("peak_device_memory_bytes"))
    return DeviceMemoryProbe.peak_device_memory_bytes(None)  # type: ignore[arg-type]


def all_cores() -> list[int]:
    """Cores this process may run on, in order."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))

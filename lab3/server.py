"""Guards around one `vllm serve`: free port, ready and ours, and the scheduler that was asked for.

Nothing here trusts that a healthy answer on the port comes from the server that was started.
"""

import asyncio
import re
import socket
import time
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import psutil

from lab3.commands import ServeCommand
from lab3.processes import Supervised

POLL_S = 0.25
LOG_LINES_SHOWN = 20


class RunError(Exception):
    """A run cannot go on; the message says why. ``status``: "failed" or "timeout"."""

    def __init__(self, reason: str, status: str = "failed") -> None:
        super().__init__(reason)
        self.status = status


class PortTakenError(Exception):
    """Somebody else listens on the port."""


def refuse_taken_port(port: int) -> None:
    """Raise PortTakenError, naming the occupant if it can be found, unless ``port`` is free."""
    with socket.socket() as probe:
        probe.settimeout(2)
        taken = probe.connect_ex(("127.0.0.1", port)) == 0
    if not taken:
        with socket.socket() as probe:
            # As vLLM binds: a port in TIME_WAIT is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                taken = True
    if taken:
        raise PortTakenError(
            f"port {port} is taken{_occupant(port)}: end that program or set PORT to a free port"
        )


def _occupant(port: int) -> str:
    for process in psutil.process_iter():
        if listens(process, port):
            try:
                return f" by process {process.pid} ({' '.join(process.cmdline())[:80]})"
            except psutil.Error:
                break
    return ""


def listens(process: psutil.Process, port: int) -> bool:
    """Whether ``process`` listens on TCP ``port``, as far as we may look."""
    try:
        connections = process.net_connections("tcp")
    except (psutil.Error, OSError):
        return False
    return any(
        connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
        for connection in connections
    )


def is_ours(server: Supervised, port: int) -> bool:
    """Whether a process of ``server`` listens on ``port``."""
    return any(listens(process, port) for process in server.family())


async def wait_until_ready(server: Supervised, serve: ServeCommand, timeout_s: float) -> None:
    """Return once our server answers /health with 200.

    Raises RunError as soon as the server has ended, when a stranger answers, or after
    ``timeout_s`` seconds.
    """
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        raise_if_ended(server)
        if await is_healthy(serve.url):
            if not is_ours(server, serve.port):
                raise RunError(
                    f"port {serve.port} is answered{_occupant(serve.port)},"
                    " which is not the server of this run"
                )
            return
        await asyncio.sleep(POLL_S)
    raise RunError(f"the server was not ready within {timeout_s:g} s (START_TIMEOUT_S)", "timeout")


async def is_healthy(url: str, timeout_s: float = 5.0) -> bool:
    """Whether /health answers 200."""
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    try:
        # No trust_env: a proxy in the environment has nothing to do with 127.0.0.1.
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(f"{url}/health") as response,
        ):
            return response.status == 200
    except (aiohttp.ClientError, TimeoutError, OSError):
        return False


def raise_if_ended(server: Supervised) -> None:
    """Raise RunError when the server has ended."""
    code = server.poll()
    if code is not None:
        raise RunError(f"the server ended with exit code {code}")


@dataclass(frozen=True)
class SchedulerProof:
    """What the server's log says about its scheduler; None where it says nothing."""

    base: str | None
    async_scheduling: bool | None


_LAB3_LINE = re.compile(r"lab3 scheduler: (\S+) base=(\S+) async_scheduling=(True|False)")
_CUSTOM_LINE = re.compile(r"Using custom scheduler class (\S+)\. This scheduler interface")


def prove_scheduler(log: str, serve: ServeCommand) -> SchedulerProof:
    """Base class and mode of the scheduler that runs; raises RunError if it is another one.

    Classes of this repository log a line of their own when the engine builds them; for a foreign
    class vLLM's own line has to do. For vLLM's default both must be absent, and base and mode
    follow from vLLM 0.32's rule: asynchronous unless the log or the command says otherwise.
    """
    lab3_lines = _LAB3_LINE.findall(log)
    running = {name for name, _, _ in lab3_lines} or set(_CUSTOM_LINE.findall(log))
    wanted = {serve.scheduler_cls} if serve.scheduler_cls else set()
    # Switched off, a class gives way to the plain base, which logs its own name.
    if serve.settings.get("disabled") is True and lab3_lines:
        wanted = {"lab3.base_scheduler.LabScheduler"}
    if running != wanted:
        raise RunError(
            f"the server runs the scheduler {_named(running)}, not {_named(wanted)}: see its log"
        )
    if lab3_lines:
        _, base, is_async = lab3_lines[-1]
        return SchedulerProof(base=base, async_scheduling=is_async == "True")
    if serve.scheduler_cls:
        return SchedulerProof(base=None, async_scheduling=None)
    is_async = _default_is_async(log, serve)
    return SchedulerProof("AsyncScheduler" if is_async else "Scheduler", is_async)


def _default_is_async(log: str, serve: ServeCommand) -> bool:
    if "--no-async-scheduling" in serve.words:
        return False
    return not re.search(r"device_config=cpu|Async scheduling is disabled", log)


def _named(classes: set[str]) -> str:
    return ", ".join(sorted(classes)) or "of vLLM itself"


def last_lines(path: Path, count: int = LOG_LINES_SHOWN) -> str:
    """The last ``count`` lines of a log, indented; says so when there are none."""
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    shown = "\n".join(f"    {line}" for line in lines[-count:])
    return f"  last lines of {path}:\n{shown or '    (empty)'}"

"""The process between the runner and a command it starts: it ends the command with the runner.

    python lab3/supervisor.py CONTROL_FD GRACE_S COMMAND...

The runner keeps the other end of the pipe CONTROL_FD and never writes to it: when it reads as
closed, the runner is gone, however it died (kill -9 included). Orphans of the command come back
to this process (Linux child subreaper), so that a worker which called setsid() or was forked twice
is found as well. Standard library and psutil only: it starts in tens of milliseconds.

SIGTERM asks the command to end; what is left of it after GRACE_S seconds is killed. The exit code
is the command's (128 + N when signal N ended it), 127 when it cannot be started.
"""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Container

import psutil

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
CANNOT_START = 127
GIVE_UP_S = 30.0


def adopt_orphans() -> None:
    """Let orphaned descendants become children of this process (a no-op beyond Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent() -> Callable[[], None]:
    """A ``preexec_fn`` that kills the command if this process is killed itself."""
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None

    def ask_kernel() -> None:
        if libc is not None:
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

    return ask_kernel


def kill_descendants(spare: Container[int] = ()) -> list[int]:
    """Kill every descendant of this process, except the children in ``spare`` and theirs.

    Returns the pids still alive after 30 s (a process stuck in the kernel), normally none.
    """
    deadline = time.monotonic() + GIVE_UP_S
    quiet_looks = 0
    alive: list[psutil.Process] = []
    # A process whose parent ends while the table is being read is missing from that one look.
    while quiet_looks < 2 and time.monotonic() < deadline:
        alive = [
            process
            for child in psutil.Process().children()
            if child.pid not in spare
            for process in _with_descendants(child)
        ]
        quiet_looks = 0 if alive else quiet_looks + 1
        for process in alive:
            _kill(process)
        time.sleep(0.02)
    return [process.pid for process in alive]


def _with_descendants(process: psutil.Process) -> list[psutil.Process]:
    """``process`` and its descendants that still run; reaps ``process`` if it is a zombie."""
    try:
        family = [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []
    alive = [member for member in family if is_alive(member)]
    if process not in alive:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(process.pid, os.WNOHANG)
    return alive


def is_alive(process: psutil.Process) -> bool:
    """Whether ``process`` still runs; a zombie does not."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _kill(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.kill()


class Supervisor:
    """Starts one command and stays until nothing of it is left."""

    def __init__(self, control_fd: int, grace_s: float) -> None:
        self._control_fd = control_fd
        self._grace_s = grace_s
        self._stop_asked = False
        self._wake_fd, wake_write_fd = os.pipe()
        os.set_blocking(self._wake_fd, False)
        os.set_blocking(wake_write_fd, False)
        signal.set_wakeup_fd(wake_write_fd, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(signum, self._ask_stop)

    def run(self, command: list[str]) -> int:
        """Run ``command`` to its end, or to the runner's; returns the exit code."""
        adopt_orphans()
        try:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                # No session of its own: Linux shares out CPU time by session first (autogroup).
                # On two cores server and client then took turns of whole time slices: TTFT
                # doubled, and 15 % of the client's ITLs were about 0 ms instead of none.
                process_group=0,
                preexec_fn=die_with_parent(),
            )
        except OSError as error:
            print(f"error: cannot start {command[0]}: {error.strerror}", file=sys.stderr)
            return CANNOT_START
        try:
            self._wait(child)
        finally:
            code = child.poll()
            stuck = kill_descendants()
        if stuck:
            print(f"error: could not kill {stuck}", file=sys.stderr)
        if code is None:
            code = -signal.SIGKILL
        return code if code >= 0 else 128 - code

    def _wait(self, child: subprocess.Popen) -> None:
        deadline = None
        while child.poll() is None:
            if self._stop_asked and deadline is None:
                deadline = time.monotonic() + self._grace_s
                child.terminate()
            if deadline is not None and time.monotonic() > deadline:
                return
            readable, _, _ = select.select([self._control_fd, self._wake_fd], [], [], 0.5)
            if self._control_fd in readable and not os.read(self._control_fd, 1):
                return
            if self._wake_fd in readable:
                os.read(self._wake_fd, 512)

    def _ask_stop(self, *_: object) -> None:
        self._stop_asked = True


if __name__ == "__main__":
    sys.exit(Supervisor(int(sys.argv[1]), float(sys.argv[2])).run(sys.argv[3:]))

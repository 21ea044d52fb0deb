"""Commands that never outlive this program, however it ends.

A ``Supervised`` command (the server, the bench) runs under a small process of its own,
``lab3/supervisor.py``, which kills the command and all its workers as soon as this program is
gone. ``follow_parent`` does the same one level up: the runner ends with the shell script that
called it.
"""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from lab3 import supervisor

SUPERVISOR_FILE = Path(supervisor.__file__)


class Supervised:
    """One running command with its output in ``log_path``; use it as a context manager.

    ``grace_s`` is how long the command may take to end when asked, before it is killed.
    """

    _live: set[int] = set()  # noqa: RUF012 - shared on purpose: whom a clean-up must spare

    def __init__(
        self,
        command: Sequence[str],
        log_path: Path,
        env: Mapping[str, str] | None = None,
        grace_s: float = 15.0,
    ) -> None:
        self.command = list(command)
        self.log_path = log_path
        control_read_fd, self._control_fd = os.pipe()
        with log_path.open("ab") as log:
            # -P: a module here named like a standard one must not shadow it.
            python = [sys.executable, "-P", str(SUPERVISOR_FILE)]
            self._process = subprocess.Popen(
                [*python, str(control_read_fd), str(grace_s), *self.command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=None if env is None else dict(env),
                pass_fds=(control_read_fd,),
                # Ctrl-C in the terminal reaches the runner only, which then ends the command. Not a
                # session, see lab3/supervisor.py.
                process_group=0,
            )
        os.close(control_read_fd)
        self._grace_s = grace_s
        Supervised._live.add(self._process.pid)

    def __enter__(self) -> "Supervised":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def supervisor_pid(self) -> int:
        """Process id of the supervisor, an ancestor of everything the command starts."""
        return self._process.pid

    def poll(self) -> int | None:
        """Exit code of the command, None while it runs."""
        code = self._process.poll()
        if code is not None:
            self._ended(code)
        return code

    def family(self) -> list[psutil.Process]:
        """The command and its descendants that run now."""
        try:
            everybody = psutil.Process(self._process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        return [process for process in everybody if supervisor.is_alive(process)]

    def stop(self) -> int:
        """Ask the command to end, kill what is left after the grace time, return its code."""
        if self.poll() is None:
            self._process.terminate()
        return self._wait(self._grace_s + supervisor.GIVE_UP_S)

    def kill(self) -> int:
        """Kill the command and its descendants at once."""
        self._close_control()
        return self._wait(supervisor.GIVE_UP_S)

    def _wait(self, timeout_s: float) -> int:
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._ended(code)
        return code

    def _ended(self, code: int) -> None:
        self._close_control()
        if self._process.pid not in Supervised._live:
            return
        Supervised._live.discard(self._process.pid)
        if code < 0 and _adopting:
            # Somebody killed the supervisor itself: its orphans came to us.
            supervisor.kill_descendants(spare=Supervised._live)

    def _close_control(self) -> None:
        if self._control_fd >= 0:
            os.close(self._control_fd)
            self._control_fd = -1


_adopting = False


def adopt_orphans() -> None:
    """Make this program the keeper of its descendants, also of those of a killed supervisor.

    For the runner's main program only: it then kills any child that it did not start through
    ``Supervised`` when a supervisor dies.
    """
    global _adopting
    supervisor.adopt_orphans()
    _adopting = True


def follow_parent(ancestor_pid: int, poll_s: float = 0.2) -> None:
    """Send this process SIGTERM once it no longer descends from ``ancestor_pid``.

    A shell that is killed cannot tell its children; they have to look. The ancestor may be the
    shell that started this process or one further up: whoever dies in between breaks the line too.
    """
    me = psutil.Process()

    def watch() -> None:
        while any(ancestor.pid == ancestor_pid for ancestor in me.parents()):
            time.sleep(poll_s)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="follow-parent", daemon=True).start()


def on_termination(loop: asyncio.AbstractEventLoop, callback: Callable[[int], None]) -> None:
    """Call ``callback(signal number)`` on Ctrl-C, TERM and HUP (unless nohup ignores it)."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signum == signal.SIGHUP and signal.getsignal(signum) == signal.SIG_IGN:
            continue
        loop.add_signal_handler(signum, callback, signum)


def die_by(signum: int) -> None:
    """End this process by ``signum`` itself, so that a calling shell knows it and stops too."""
    signal.signal(signum, signal.SIG_DFL)
    os.kill(os.getpid(), signum)

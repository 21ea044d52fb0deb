"""Nothing that was started survives, however its starter ends."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from lab3 import processes, supervisor
from lab3.processes import Supervised

ROOT = Path(__file__).resolve().parent.parent
STUB = Path(__file__).with_name("stub_vllm.py")
DEADLINE_S = 60.0

DEAF_TREE = """
import os, signal, sys, time
sys.path.insert(0, sys.argv[1])
from stub_vllm import spawn_daemon
spawn_daemon()
if "deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
while "leave" not in sys.argv:
    time.sleep(0.05)
sys.exit(5)
"""


def with_marker(*markers: str) -> list[psutil.Process]:
    """Running processes whose command line holds all ``markers``, this test's own excepted."""
    found = []
    for process in psutil.process_iter():
        try:
            line = " ".join(process.cmdline())
            if process.status() != psutil.STATUS_ZOMBIE and all(m in line for m in markers):
                found.append(process)
        except psutil.Error:
            continue
    return [process for process in found if process.pid != os.getpid()]


def wait_until(condition: Callable[[], bool], what: str, deadline_s: float = DEADLINE_S) -> None:
    deadline = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for: {what}"
        time.sleep(0.05)


def tree(tmp_path: Path, *words: str) -> list[str]:
    """A command with a daemon; the folder in it makes its processes findable."""
    return [sys.executable, "-c", DEAF_TREE, str(STUB.parent), str(tmp_path), *words]


def is_up(log: Path) -> bool:
    return log.exists() and "up" in log.read_text()


def test_stop_ends_the_command_and_its_daemon(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with Supervised(tree(tmp_path), log) as command:
        wait_until(lambda: is_up(log), "command")
        # command, daemon, supervisor
        wait_until(lambda: len(with_marker(str(tmp_path))) >= 2 + 1, "the daemon")
    assert with_marker(str(tmp_path)) == []
    assert command.poll() == 128 + signal.SIGTERM


def test_a_command_deaf_to_term_is_killed_after_the_grace_time(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with Supervised(tree(tmp_path, "deaf"), log, grace_s=0.3) as command:
        wait_until(lambda: is_up(log), "command")
    assert with_marker(str(tmp_path)) == []
    assert command.poll() == 128 + signal.SIGKILL


def test_kill_does_not_ask(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = Supervised(tree(tmp_path, "deaf"), log, grace_s=3600)
    wait_until(lambda: is_up(log), "command")
    command.kill()
    assert with_marker(str(tmp_path)) == []


def test_workers_end_with_a_command_that_ends_by_itself(tmp_path: Path) -> None:
    command = Supervised(tree(tmp_path, "leave"), tmp_path / "log")
    wait_until(lambda: command.poll() is not None, "end")
    assert command.poll() == 5
    assert with_marker(str(tmp_path)) == []
    assert command.stop() == 5


def test_a_missing_program_is_one_line_in_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = Supervised(["no-such-program-here", "x"], log)
    wait_until(lambda: command.poll() is not None, "end")
    assert command.poll() == supervisor.CANNOT_START
    assert log.read_text().splitlines() == [
        "error: cannot start no-such-program-here: No such file or directory"
    ]


def test_the_command_shares_our_session_but_not_our_process_group(tmp_path: Path) -> None:
    """A session of its own would be a scheduling group of its own: see lab3/supervisor.py."""
    with Supervised(["sleep", "3600"], tmp_path / "log") as command:
        wait_until(lambda: len(command.family()) == 1, "the command")
        (sleep,) = command.family()
        assert os.getsid(sleep.pid) == os.getsid(0)
        groups = {os.getpgid(pid) for pid in (sleep.pid, command.supervisor_pid, os.getpid())}
        assert len(groups) == 3


def test_family_finds_the_daemon(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with Supervised(tree(tmp_path), log) as command:
        wait_until(lambda: is_up(log), "command")
        family = {process.pid for process in command.family()}
        marked = {process.pid for process in with_marker(str(tmp_path))}
        assert family == marked - {command.supervisor_pid}


STARTER = """
import sys, time
from pathlib import Path
from lab3 import processes
if "adopt" in sys.argv:
    processes.adopt_orphans()
command = processes.Supervised(sys.argv[3:], Path(sys.argv[1]), grace_s=3600)
Path(sys.argv[2]).write_text(str(command.supervisor_pid))
while command.poll() is None:
    time.sleep(0.05)
print("ended", command.poll(), flush=True)
time.sleep(3600)
"""


def starter(tmp_path: Path, *words: str) -> subprocess.Popen:
    log, pid_file = tmp_path / "log", tmp_path / "pid"
    process = subprocess.Popen(
        [sys.executable, "-c", STARTER, str(log), str(pid_file), *tree(tmp_path, "deaf", *words)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: is_up(log) and pid_file.exists(), "command")
    return process


def test_kill_9_of_the_starter_leaves_nothing(tmp_path: Path) -> None:
    with starter(tmp_path) as process:
        process.kill()
        process.wait()
        wait_until(lambda: not with_marker(str(tmp_path)), "the end of everything")


def test_kill_9_of_the_supervisor_leaves_nothing(tmp_path: Path) -> None:
    with starter(tmp_path, "adopt") as process:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
        assert process.stdout.readline().startswith("ended -9")
        rest = {found.pid for found in with_marker(str(tmp_path))} - {process.pid}
        process.kill()
    assert rest == set()


def test_two_commands_are_cleaned_up_apart(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    with Supervised(tree(first), tmp_path / "log1") as server:
        wait_until(lambda: is_up(tmp_path / "log1"), "first")
        with Supervised(tree(second), tmp_path / "log2"):
            wait_until(lambda: is_up(tmp_path / "log2"), "second")
        assert with_marker(str(second)) == []
        assert server.poll() is None
        assert len(server.family()) == 2


FOLLOWER = """
import sys, time
from lab3.processes import follow_parent
follow_parent(int(sys.argv[2]))
time.sleep(0.5)
print("up", flush=True)
time.sleep(3600)
"""


@pytest.mark.parametrize("victim", ["outer", "inner"])
def test_follow_parent_ends_when_the_line_to_the_shell_breaks(tmp_path: Path, victim: str) -> None:
    follower = f"{sys.executable} -c '{FOLLOWER}' {tmp_path} $OUTER & wait"
    (tmp_path / "inner.sh").write_text(follower)
    (tmp_path / "outer.sh").write_text(f"export OUTER=$$; bash {tmp_path}/inner.sh; read -r")
    with subprocess.Popen(
        ["bash", str(tmp_path / "outer.sh")],
        cwd=ROOT,
        stdin=subprocess.PIPE,  # keeps the outer shell waiting in `read`
        stdout=subprocess.PIPE,
        text=True,
    ) as shell:
        assert shell.stdout.readline() == "up\n"
        inner = psutil.Process(shell.pid).children()[0]
        (inner if victim == "inner" else shell).kill()

        wait_until(lambda: not with_marker(str(tmp_path), "import follow_parent"), "its end")
        assert (shell.poll() is None) == (victim == "inner")
        shell.kill()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_termination_signals_reach_the_callback(signum: signal.Signals) -> None:
    async def receive() -> int:
        loop = asyncio.get_running_loop()
        received = loop.create_future()
        processes.on_termination(loop, received.set_result)
        os.kill(os.getpid(), signum)
        return await asyncio.wait_for(received, DEADLINE_S)

    assert asyncio.run(receive()) == signum

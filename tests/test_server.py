"""The guards around a server: its port, whose answer it is, and which scheduler runs."""

import asyncio
import socket
import sys
from pathlib import Path

import pytest
from test_processes import STUB, wait_until

from lab3.commands import ServeCommand
from lab3.processes import Supervised
from lab3.server import (
    PortTakenError,
    RunError,
    SchedulerProof,
    is_healthy,
    is_ours,
    last_lines,
    prove_scheduler,
    refuse_taken_port,
    wait_until_ready,
)

SJF = "my_scheduler.SJFScheduler"
LAB3_LINE = "INFO lab3 scheduler: {} base={} async_scheduling={} settings=Settings(a=1)\n"
VLLM_LINE = "Using custom scheduler class {}. This scheduler interface is not public\n"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def stub_server(port: int, *words: str) -> list[str]:
    return [sys.executable, str(STUB), "serve", "--port", str(port), *words]


def serve(port: int, *words: str) -> ServeCommand:
    return ServeCommand.read(["vllm", "serve", "m", "--port", str(port), *words])


def test_a_free_port_passes() -> None:
    refuse_taken_port(free_port())


def test_a_port_somebody_listens_on_is_refused_by_name() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(PortTakenError, match=rf"port {port} is taken by process \d+ \(.+PORT"):
            refuse_taken_port(port)


def test_a_port_bound_on_all_addresses_is_refused() -> None:
    with (
        socket.create_server(("0.0.0.0", 0), reuse_port=True) as listener,
        pytest.raises(PortTakenError),
    ):
        refuse_taken_port(listener.getsockname()[1])


def test_a_port_that_was_just_in_use_is_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            accepted, _ = listener.accept()
            # The server's side closes first and so stays in TIME_WAIT.
            accepted.close()
    refuse_taken_port(port)


def test_our_server_is_ready(tmp_path: Path) -> None:
    port = free_port()
    with Supervised(stub_server(port), tmp_path / "log") as server:
        asyncio.run(wait_until_ready(server, serve(port), 60))
        assert is_ours(server, port)


def test_a_strangers_healthy_answer_is_not_taken_for_ours(tmp_path: Path) -> None:
    port = free_port()
    with (
        Supervised(stub_server(port), tmp_path / "stranger.log") as stranger,
        Supervised(["sleep", "3600"], tmp_path / "ours.log") as ours,
    ):
        wait_until(lambda: is_ours(stranger, port), "the stranger")
        with pytest.raises(RunError, match=rf"port {port} is answered .*not the server of this"):
            asyncio.run(wait_until_ready(ours, serve(port), 60))


def test_a_server_that_ends_is_not_waited_for(tmp_path: Path) -> None:
    port = free_port()
    with (
        Supervised(stub_server(port, "--stub", "die"), tmp_path / "log") as server,
        pytest.raises(RunError, match="ended with exit code 3") as caught,
    ):
        asyncio.run(wait_until_ready(server, serve(port), 3600))
    assert caught.value.status == "failed"


def test_a_server_that_never_gets_ready_is_given_up(tmp_path: Path) -> None:
    port = free_port()
    with (
        Supervised(stub_server(port, "--stub", "never-ready"), tmp_path / "log") as server,
        pytest.raises(RunError, match="not ready within 1 s") as caught,
    ):
        asyncio.run(wait_until_ready(server, serve(port), 1))
    assert caught.value.status == "timeout"


def test_a_silent_server_is_not_healthy(tmp_path: Path) -> None:
    port = free_port()
    with Supervised(stub_server(port, "--stub", "silent"), tmp_path / "log") as server:
        wait_until(lambda: is_ours(server, port), "the server")
        assert not asyncio.run(is_healthy(f"http://127.0.0.1:{port}", timeout_s=0.5))


def test_proxies_do_not_touch_the_health_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    port = free_port()
    with Supervised(stub_server(port), tmp_path / "log") as server:
        asyncio.run(wait_until_ready(server, serve(port), 60))


def test_the_class_asked_for_is_proven_with_its_base() -> None:
    wanted = serve(8000, "--scheduler-cls", SJF)
    log = VLLM_LINE.format(SJF) + LAB3_LINE.format(SJF, "AsyncScheduler", "True")
    assert prove_scheduler(log, wanted) == SchedulerProof("AsyncScheduler", True)


def test_a_foreign_class_is_proven_by_vllms_own_line() -> None:
    wanted = serve(8000, "--scheduler-cls", "other.Scheduler")
    assert prove_scheduler(VLLM_LINE.format("other.Scheduler"), wanted).base is None


@pytest.mark.parametrize(
    ("words", "log"),
    [
        (["--scheduler-cls", SJF], ""),
        (["--scheduler-cls", SJF], LAB3_LINE.format("my_scheduler.Other", "Scheduler", "False")),
        (["--scheduler-cls", SJF], VLLM_LINE.format("my_scheduler.Other")),
        ([], LAB3_LINE.format(SJF, "Scheduler", "False")),
        ([], VLLM_LINE.format(SJF)),
    ],
)
def test_another_scheduler_than_asked_is_refused(words: list[str], log: str) -> None:
    with pytest.raises(RunError, match=r"the server runs the scheduler .+, not .+"):
        prove_scheduler(log, serve(8000, *words))


def test_a_disabled_class_is_vllms_scheduling_under_our_base() -> None:
    off = '{"lab3": {"disabled": true}}'
    wanted = serve(8000, "--scheduler-cls", SJF, "--additional-config", off)
    log = LAB3_LINE.format("lab3.base_scheduler.LabScheduler", "Scheduler", "False")
    assert prove_scheduler(log, wanted).base == "Scheduler"


@pytest.mark.parametrize(
    ("words", "log", "base"),
    [
        ([], "with config: device_config=cpu, seed=0", "Scheduler"),
        ([], "with config: device_config=cuda, seed=0", "AsyncScheduler"),
        ([], "device_config=cuda\nAsync scheduling is disabled for", "Scheduler"),
        (["--no-async-scheduling", "--seed", "0"], "device_config=cuda", "Scheduler"),
        (["--no-async-scheduling"], "device_config=cuda", "Scheduler"),
    ],
)
def test_mode_of_vllms_own_scheduler(words: list[str], log: str, base: str) -> None:
    proof = prove_scheduler(log, serve(8000, *words))
    assert proof == SchedulerProof(base, base == "AsyncScheduler")


def test_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert "(empty)" in last_lines(log)
    log.write_text("\n".join(f"line {number}" for number in range(1, 51)))
    shown = last_lines(log).splitlines()
    assert [line.strip() for line in shown[1:]] == [f"line {number}" for number in range(31, 51)]

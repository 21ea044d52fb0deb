"""`python -m lab3.run` from outside: what it starts, keeps, says and how it ends."""

import fcntl
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from test_processes import ROOT, STUB, wait_until, with_marker
from test_server import free_port

from lab3 import run

TIMES = ["--timeout-s", "10", "--run-timeout-s", "60", "--start-timeout-s", "60"]


def words(tmp_path: Path, *options: str, serve: str = "", bench: str = "") -> list[str]:
    """Arguments of one call with the stubs; the later of two equal options counts."""
    stub = [sys.executable, str(STUB)]
    port = ["--port", str(free_port())]
    marker = ["--marker", str(tmp_path)]
    load = "--dataset-name random --random-input-len 8 --random-output-len 4 --num-prompts 20"
    return [
        *(str(tmp_path / "runs"), "--task", "task3", "--arm", "default", "--label", "Default"),
        *(*TIMES, *options),
        *("--serve", *stub, "serve", *port, *marker, "--no-enable-prefix-caching"),
        *shlex.split(serve),
        *("--bench", *stub, "bench", *port, *marker, *shlex.split(load), *shlex.split(bench)),
    ]


def call(arguments: list[str], env: dict[str, str] | None = None) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "lab3.run", *arguments],
        cwd=ROOT,
        env=os.environ | (env or {}),
        capture_output=True,
        text=True,
    )


def with_option(arguments: list[str], name: str, value: str) -> list[str]:
    """The same call with another value of ``name`` in both commands."""
    changed = list(arguments)
    for position, word in enumerate(changed):
        if word == name:
            changed[position + 1] = value
    return changed


def record(tmp_path: Path, repeat: int = 1) -> dict:
    return json.loads((tmp_path / f"runs/default-r{repeat}/run.json").read_text())


def test_a_good_run_leaves_everything_and_no_process(tmp_path: Path) -> None:
    done = call(words(tmp_path, "--repeats", "1", "2", serve="--max-num-seqs 4"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert with_marker(str(tmp_path)) == []
    for repeat in (1, 2):
        folder = tmp_path / f"runs/default-r{repeat}"
        assert {path.name for path in folder.iterdir()} == {
            *("run.json", "bench.json", "bench.log", "server.log", "metrics.jsonl")
        }
        content = record(tmp_path, repeat)
        assert content["status"] == "ok"
        assert content["repeat"] == repeat
        assert (content["task"], content["arm"], content["label"]) == (
            *("task3", "default", "Default"),
        )
        assert content["scheduler_cls"] is None
        assert (content["scheduler_base"], content["async_scheduling"]) == ("Scheduler", False)
        assert content["asked"] == {"input_tokens": 8, "output_tokens": 4, "num_prompts": 20}
        assert content["point"] == {"max_num_seqs": 4}
        assert content["kv_cache"] == {"num_blocks": 101, "block_size": 16}
        assert content["server_metrics"]["kv_usage_peak"] == 0.25
        assert content["server_metrics"]["generation_tokens"] > 0
        assert content["server_metrics"]["prompt_tokens"] is None
        assert content["bench_cmd"][-4:] == [
            *("--result-dir", str(folder), "--result-filename", "bench.json")
        ]
        assert content["hardware"]["cores"] > 0
        assert content["timeout_s"] == 10.0
    assert done.stdout.count("starting the server") == 1
    assert "run 2/2" in done.stdout
    assert "KV usage peak 25.0 %" in done.stdout
    assert "eta " in done.stdout


def test_with_prefix_caching_every_repeat_gets_a_fresh_server(tmp_path: Path) -> None:
    arguments = words(tmp_path, "--repeats", "1", "2")
    arguments.remove("--no-enable-prefix-caching")
    assert call(arguments).stdout.count("starting the server") == 2


def test_finished_runs_are_skipped_and_others_made_again(tmp_path: Path) -> None:
    arguments = words(tmp_path, "--repeats", "1", "2")
    call(arguments)
    result = tmp_path / "runs/default-r1/bench.json"
    before = result.stat().st_mtime_ns

    again = call(with_option(arguments, "--port", str(free_port())))
    assert again.stdout.count("finished before, skipped") == 2
    assert "starting the server" not in again.stdout

    (tmp_path / "runs/default-r2/run.json").unlink()
    (tmp_path / "runs/default-r2/leftover").touch()
    half = call(arguments)
    assert "default-r2: made again, half-written" in half.stdout
    assert not (tmp_path / "runs/default-r2/leftover").exists()
    assert record(tmp_path, 2)["status"] == "ok"
    assert result.stat().st_mtime_ns == before

    changed = call(with_option(arguments, "--num-prompts", "21"))
    assert "default-r1: made again, changed: --num-prompts 20 -> 21" in changed.stdout
    assert record(tmp_path)["asked"]["num_prompts"] == 21


def test_another_request_timeout_is_noted_without_a_new_run(tmp_path: Path) -> None:
    arguments = words(tmp_path)
    call(arguments)
    started = record(tmp_path)["started"]
    assert "skipped" in call(with_option(arguments, "--timeout-s", "3")).stdout
    assert record(tmp_path)["timeout_s"] == 3.0
    assert record(tmp_path)["started"] == started


def test_another_vllm_setting_of_the_profile_is_another_run(tmp_path: Path) -> None:
    arguments = words(tmp_path)
    call(arguments, {"PROFILE": "cpu", "VLLM_CPU_KVCACHE_SPACE": "1"})
    changed = call(arguments, {"PROFILE": "cpu", "VLLM_CPU_KVCACHE_SPACE": "2"})
    assert "changed: VLLM_CPU_KVCACHE_SPACE 1 -> 2" in changed.stdout


def test_a_server_that_dies_at_the_start_shows_its_last_lines(tmp_path: Path) -> None:
    done = call(words(tmp_path, "--repeats", "1", "2", serve="--stub die"))
    assert done.returncode == 1
    assert "the server ended with exit code 3" in done.stdout
    assert "log line 29" in done.stdout
    assert "log line 9\n" not in done.stdout
    assert record(tmp_path)["status"] == "failed"
    assert "log line 29" in (tmp_path / "runs/default-r1/server.log").read_text()
    assert not (tmp_path / "runs/default-r2").exists()
    assert with_marker(str(tmp_path)) == []


def test_a_server_that_never_answers_is_given_up(tmp_path: Path) -> None:
    done = call(words(tmp_path, "--start-timeout-s", "1", serve="--stub silent"))
    assert done.returncode == 1
    assert record(tmp_path)["status"] == "timeout"
    assert "not ready within 1 s" in record(tmp_path)["reason"]
    assert with_marker(str(tmp_path)) == []


def test_a_run_that_takes_too_long_is_a_timeout_with_what_is_known(tmp_path: Path) -> None:
    arguments = words(
        *(tmp_path, "--run-timeout-s", "2", "--repeats", "1", "2"),
        serve="--stub busy",
        bench="--stub hang",
    )
    done = call(arguments)
    assert done.returncode == 1
    content = record(tmp_path)
    assert content["status"] == "timeout"
    assert content["reason"] == "not finished after 2 s (RUN_TIMEOUT_S)"
    assert content["server_metrics"]["requests_running_peak"] == 3
    assert "log line 29" in done.stdout
    assert "default-r2: not tried" in done.stdout
    assert with_marker(str(tmp_path)) == []


def test_an_engine_that_makes_no_token_is_noticed(tmp_path: Path) -> None:
    arguments = words(
        *(tmp_path, "--stall-timeout-s", "2"), serve="--stub stuck", bench="--stub hang"
    )
    assert call(arguments).returncode == 1
    assert record(tmp_path)["status"] == "timeout"
    assert "no token for 2 s (STALL_TIMEOUT_S) with 3 requests" in record(tmp_path)["reason"]


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        ("kill-server", "the server ended with exit code 7"),
        ("sick-server", "no longer healthy after the bench"),
        ("exit-1", "the bench ended with exit code 1"),
    ],
)
def test_what_breaks_in_mid_run_ends_the_arm(tmp_path: Path, mode: str, reason: str) -> None:
    done = call(words(tmp_path, "--repeats", "1", "2", bench=f"--stub {mode}"))
    assert done.returncode == 1
    assert record(tmp_path)["status"] == "failed"
    assert reason in record(tmp_path)["reason"]
    assert ("bench gives up" if mode == "exit-1" else "log line 29") in done.stdout
    assert not (tmp_path / "runs/default-r2").exists()
    assert with_marker(str(tmp_path)) == []


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        ("fail", "1 of 20 requests failed (Server disconnected)"),
        ("short", "20 of 20 answers not 4 tokens long"),
    ],
)
def test_a_bad_result_is_kept_and_called_failed(tmp_path: Path, mode: str, reason: str) -> None:
    done = call(words(tmp_path, "--repeats", "1", "2", bench=f"--stub {mode}"))
    assert done.returncode == 1
    for repeat in (1, 2):  # The server is well: the other repeats go on.
        assert record(tmp_path, repeat)["reason"] == reason
        assert (tmp_path / f"runs/default-r{repeat}/bench.json").exists()


def test_a_taken_port_is_refused_before_anything_happens(tmp_path: Path) -> None:
    arguments = words(tmp_path)
    call(arguments)
    changed = with_option(arguments, "--num-prompts", "21")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        done = call(with_option(changed, "--port", port))
    assert done.returncode == 2
    assert f"error: port {port} is taken" in done.stderr
    assert "starting" not in done.stdout
    assert record(tmp_path)["asked"]["num_prompts"] == 20


def test_a_run_folder_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    with (tmp_path / "runs/.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = call(words(tmp_path))
    assert done.returncode == 2
    assert "another run writes to" in done.stderr


def test_proxies_do_not_touch_server_bench_and_metrics(tmp_path: Path) -> None:
    names = ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "ALL_PROXY")
    dead = dict.fromkeys(names, "http://127.0.0.1:9")
    done = call(words(tmp_path), dead | {"NO_PROXY": "example.org", "no_proxy": ""})
    assert done.returncode == 0, done.stdout
    assert record(tmp_path)["server_metrics"]["kv_usage_peak"] == 0.25
    log = (tmp_path / "runs/default-r1/bench.log").read_text()
    assert "'NO_PROXY': 'example.org,127.0.0.1,localhost'" in log


def test_each_repeat_gets_its_own_steps(tmp_path: Path) -> None:
    settings = json.dumps({"lab3": {"record": str(tmp_path / "server-steps.jsonl")}})
    arguments = words(
        *(tmp_path, "--repeats", "1", "2"),
        serve=f"--additional-config {shlex.quote(settings)}",
    )
    assert call(arguments).returncode == 0
    numbers = []
    for repeat in (1, 2):
        folder = tmp_path / f"runs/default-r{repeat}"
        steps = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
        assert len(steps) > 5
        assert steps[0]["counters"] == {"seen": 1}
        assert all("counters" not in step for step in steps[1:])
        bench = json.loads((folder / "bench.json").read_text())
        assert steps[0]["t_s"] < bench["start_times"][0]
        numbers += [step["number"] for step in steps]
    assert numbers == sorted(set(numbers))
    assert not (tmp_path / "server-steps.jsonl").exists()


def test_dry_run_prints_commands_that_a_shell_reads_back(tmp_path: Path) -> None:
    settings = '--additional-config \'{"lab3": {"record": "a b.jsonl"}}\''
    arguments = words(tmp_path, "--repeats", "1", "2", "--dry-run", serve=settings)
    done = call(arguments)
    serve, bench, remark = done.stdout.splitlines()
    assert shlex.split(serve)[-1] == '{"lab3": {"record": "a b.jsonl"}}'
    assert shlex.split(bench)[-4:] == [
        *("--result-dir", str(tmp_path / "runs/default-r1"), "--result-filename", "bench.json")
    ]
    assert remark == "# the bench again for default-r2"
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda given: given[: given.index("--bench")], "the bench's after --bench"),
        (lambda given: with_option(given, "--port", "x"), "--port must be a number"),
        (lambda given: [*given, "--request-rate", "fast"], "--request-rate must be a number"),
    ],
)
def test_nonsense_is_one_clear_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change, message: str
) -> None:
    assert run.main(change(words(tmp_path))) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("error: ")
    assert error.count("\n") == 1


# -- the end of runner and script --


def start_in_mid_run(tmp_path: Path, script: str = "") -> subprocess.Popen:
    """A runner (called by the bash ``script`` if given) whose bench hangs."""
    arguments = words(tmp_path, bench="--stub hang")
    command = [sys.executable, "-m", "lab3.run", *arguments]
    if script:
        runner = shlex.join([sys.executable, "-m", "lab3.run", *arguments[:1]])
        runner += f" --parent-pid $$ {shlex.join(arguments[1:])}"
        command = ["bash", "-c", script.replace("RUNNER", runner)]
    # A process group of its own, as a terminal gives it: Ctrl-C goes to the whole of it.
    process = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
    bench_log = tmp_path / "runs/default-r1/bench.log"
    wait_until(lambda: bench_log.exists() and "bench starts" in bench_log.read_text(), "the bench")
    assert len(with_marker(str(tmp_path))) >= 5
    return process


def assert_all_gone(tmp_path: Path) -> None:
    wait_until(lambda: not with_marker(str(tmp_path)), "the end of everything")
    assert not (tmp_path / "runs/default-r1/run.json").exists()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_no_process_outlives_the_runner(tmp_path: Path, signum: signal.Signals) -> None:
    with start_in_mid_run(tmp_path) as process:
        process.send_signal(signum)
        # It ends by the signal itself: that is how a shell knows to stop as well.
        assert process.wait() == -signum
        assert_all_gone(tmp_path)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_the_script(tmp_path: Path, signum: signal.Signals) -> None:
    with start_in_mid_run(tmp_path, "RUNNER || echo failed; true") as shell:
        shell.send_signal(signum)
        assert shell.wait() == -signum
        assert_all_gone(tmp_path)


def test_kill_9_of_script_and_runner_together_leaves_nothing(tmp_path: Path) -> None:
    with start_in_mid_run(tmp_path, "RUNNER; true") as shell:
        os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()
        assert_all_gone(tmp_path)


def test_ctrl_c_ends_the_script_too(tmp_path: Path) -> None:
    mark = tmp_path / "script-went-on"
    script = f"RUNNER || true; touch {shlex.quote(str(mark))}"
    with start_in_mid_run(tmp_path, script) as shell:
        os.killpg(shell.pid, signal.SIGINT)
        shell.wait()
        assert_all_gone(tmp_path)
    assert not mark.exists()


def test_an_interrupted_run_is_made_again(tmp_path: Path) -> None:
    with start_in_mid_run(tmp_path) as process:
        process.kill()
        process.wait()
        assert_all_gone(tmp_path)
    done = call(words(tmp_path))
    assert "made again, half-written" in done.stdout
    assert record(tmp_path)["status"] == "ok"

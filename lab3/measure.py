"""Makes the runs of one arm: server up, bench against it, everything written down."""

import asyncio
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab3 import commands, provenance, run_folder
from lab3.kv_per_token import kv_bytes_from_log
from lab3.processes import Supervised
from lab3.progress import Progress
from lab3.refusal import refusal
from lab3.run_folder import StepCutter
from lab3.server import (
    RunError,
    SchedulerProof,
    is_healthy,
    last_lines,
    prove_scheduler,
    raise_if_ended,
    refuse_taken_port,
    wait_until_ready,
)
from lab3.server_metrics import MetricsSampler, Sample, percent_or_not_found, summarize

if TYPE_CHECKING:
    from lab3.run import Job

POLL_S = 0.2
SAMPLE_S = 1.0


def child_env() -> dict[str, str]:
    """The environment of server and bench: ours, importable from anywhere, no proxy at home."""
    env = dict(os.environ)
    for name in ("NO_PROXY", "no_proxy"):
        hosts = [host for host in env.get(name, "").split(",") if host]
        env[name] = ",".join(dict.fromkeys([*hosts, "127.0.0.1", "localhost"]))
    paths = [str(provenance.ROOT), env.get("PYTHONPATH", "")]
    env["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    env["PYTHONUNBUFFERED"] = "1"
    # The log has to tell which scheduler runs.
    env["VLLM_LOGGING_LEVEL"] = "DEBUG" if env.get("VLLM_LOGGING_LEVEL") == "DEBUG" else "INFO"
    # uvicorn's 5 s let it close a connection that the client is about to use again.
    env.setdefault("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "120")
    return env


async def measure_arm(job: "Job") -> bool:
    """Make every run of ``job`` that is not finished; returns whether all are good now.

    Options that vLLM refuses count as good if the job allows it; their first run says so.

    Raises PortTakenError before anything is started or deleted.
    """
    origin = provenance.collect()
    progress = Progress(job)
    pending = []
    for repeat in job.repeats:
        why = run_folder.why_redo(job.folder(repeat), job.serve, job.bench, origin)
        if why is None and run_folder.is_refused(job.folder(repeat)):
            # What vLLM refuses once it refuses in every repeat.
            progress.say(f"{job.folder(repeat).name}: refused before, skipped")
            return True
        if why is None:
            run_folder.keep_timeout(job.folder(repeat), job.timeout_s)
            progress.say(f"{job.folder(repeat).name}: finished before, skipped")
            continue
        pending.append(repeat)
        if why != "new":
            progress.say(f"{job.folder(repeat).name}: made again, {why}")
    if not pending:
        return True
    refuse_taken_port(job.serve.port)
    good = True
    for repeats in _per_server(job, pending):
        good = await _Session(job, origin, progress).run(repeats) and good
    return good


def _per_server(job: "Job", repeats: list[int]) -> list[list[int]]:
    """The repeats that may share a server: all, unless one would hit another's prefix cache."""
    if "--no-enable-prefix-caching" in job.serve.words:
        return [repeats]
    return [[repeat] for repeat in repeats]


class _Session:
    """One start of the server and the runs made on it."""

    def __init__(self, job: "Job", origin: dict[str, Any], progress: Progress) -> None:
        self._job = job
        self._origin = origin
        self._progress = progress
        self._steps = StepCutter(job.serve.record)
        self._start_s: float | None = None
        self._proof = SchedulerProof(None, None)
        self._kv_bytes: int | None = None

    async def run(self, repeats: list[int]) -> bool:
        """Make these runs; returns whether all of them are good.

        A run that fails in a way that leaves the server in doubt ends the session: the repeats
        after it are not tried.
        """
        job = self._job
        job.server_log.parent.mkdir(parents=True, exist_ok=True)
        job.server_log.unlink(missing_ok=True)
        self._steps.remove_sources()  # of a session that was killed
        for repeat in repeats:
            run_folder.start_afresh(job.folder(repeat))
        self._progress.starting_server(repeats)
        first = _RunRecord(job, repeats[0])
        with Supervised(job.serve.words, job.server_log, child_env()) as server:
            try:
                await self._bring_up(server)
            except RunError as error:
                server.kill()
                refused = job.allow_refusal and refusal(job.server_log.read_text(errors="replace"))
                problem = RunError(refused, "refused") if refused else error
                self._fail(first, problem, server)
                self._drop_untried(repeats[1:])
                return bool(refused)
            good = await self._make_runs(server, repeats)
        self._steps.remove_sources()
        return good

    async def _bring_up(self, server: Supervised) -> None:
        started_s = time.monotonic()
        check = asyncio.create_task(self._check_scheduler())
        try:
            ready = asyncio.create_task(
                wait_until_ready(server, self._job.serve, self._job.start_timeout_s)
            )
            # The check imports vLLM, as the server's two processes do one after the other: it is
            # through before the second of them loads the model, and costs no time of its own.
            await asyncio.wait([check, ready], return_when=asyncio.FIRST_EXCEPTION)
            for task in (check, ready):
                if task.done():
                    task.result()
        finally:
            check.cancel()
            ready.cancel()
            await asyncio.gather(check, ready, return_exceptions=True)
        self._start_s = time.monotonic() - started_s
        log = self._job.server_log.read_text(errors="replace")
        self._proof = prove_scheduler(log, self._job.serve)
        self._kv_bytes = kv_bytes_from_log(log)
        self._progress.server_ready(self._start_s, self._proof)

    async def _check_scheduler(self) -> None:
        serve = self._job.serve
        if serve.scheduler_cls is None:
            return
        log = self._job.server_log.with_suffix(".check.log")
        log.unlink(missing_ok=True)
        command = [sys.executable, "-m", "lab3.check", "--scheduler-cls", serve.scheduler_cls]
        command += ["--settings", run_folder.to_json(serve.settings)]
        with Supervised(command, log, child_env(), grace_s=1) as check:
            while (code := check.poll()) is None:
                await asyncio.sleep(POLL_S)
        if code:
            lines = log.read_text(errors="replace").strip().splitlines()
            said = lines[-1].removeprefix("error: ") if lines else f"exit code {code}"
            raise RunError(f"lab3.check: {said}")
        log.unlink()

    async def _make_runs(self, server: Supervised, repeats: list[int]) -> bool:
        good = True
        for index, repeat in enumerate(repeats):
            record = _RunRecord(self._job, repeat)
            self._progress.starting_run(repeats, index)
            sampler = MetricsSampler(self._job.serve.url)
            try:
                await self._bench(record, server, sampler)
                problem = None
            except RunError as error:
                problem = error
            finally:
                await sampler.close()
                self._keep_files(record, sampler)
            if problem is not None:
                good = False
                self._fail(record, problem, server, sampler)
                if not isinstance(problem, _BadResult):
                    self._drop_untried(repeats[index + 1 :])
                    break
                continue
            self._finish(record, "ok", "", sampler)
            self._progress.run_done(repeats, index, record.wall_s, _kv_words(sampler))
        return good

    async def _bench(
        self, record: "_RunRecord", server: Supervised, sampler: MetricsSampler
    ) -> None:
        """One bench to its end; raises RunError when it or the server does not make it."""
        job, folder = self._job, record.folder
        command = job.bench.saving_to(folder, run_folder.PARTIAL_BENCH_FILE)
        stall = StallWatch(job.stall_timeout_s)
        await sampler.sample()
        with Supervised(command, folder / run_folder.BENCH_LOG, child_env(), grace_s=1) as bench:
            next_sample_s = time.monotonic() + SAMPLE_S
            while (code := bench.poll()) is None:
                raise_if_ended(server)
                if record.wall_s > job.run_timeout_s:
                    raise RunError(
                        f"not finished after {job.run_timeout_s:g} s (RUN_TIMEOUT_S)", "timeout"
                    )
                if time.monotonic() >= next_sample_s:
                    next_sample_s += SAMPLE_S
                    sample = await sampler.sample()
                    stall.look(sample, sampler.failing_since_s)
                await asyncio.sleep(POLL_S)
        record.end()
        raise_if_ended(server)
        # The API server can outlive its engine for seconds and look well to the client.
        if not await is_healthy(job.serve.url):
            raise RunError("the server is no longer healthy after the bench")
        await sampler.sample()
        partial = folder / run_folder.PARTIAL_BENCH_FILE
        if code:
            raise _BenchError(f"the bench ended with exit code {code}")
        if not partial.exists():
            raise _BenchError("the bench wrote no result: give it --save-result")
        partial.rename(folder / run_folder.BENCH_FILE)
        problems = list(bench_problems(folder / run_folder.BENCH_FILE, job.bench.asked))
        if problems:
            raise _BadResult("; ".join(problems))

    def _keep_files(self, record: "_RunRecord", sampler: MetricsSampler) -> None:
        record.end()
        self._steps.cut(record.folder, record.start_s, record.start_s + record.wall_s)
        sampler.write(record.folder / run_folder.METRICS_FILE)
        self._copy_server_log(record)

    def _copy_server_log(self, record: "_RunRecord") -> None:
        shutil.copyfile(self._job.server_log, record.folder / run_folder.SERVER_LOG)

    def _fail(
        self,
        record: "_RunRecord",
        error: RunError,
        server: Supervised,
        sampler: MetricsSampler | None = None,
    ) -> None:
        record.end()
        self._copy_server_log(record)
        self._finish(record, error.status, str(error), sampler)
        self._progress.run_failed(record.folder.name, error.status, str(error))
        if error.status == "refused":
            return
        log = record.bench_log if isinstance(error, _BenchError) else self._job.server_log
        self._progress.note(last_lines(log))

    def _drop_untried(self, repeats: list[int]) -> None:
        for repeat in repeats:
            self._job.folder(repeat).rmdir()
            self._progress.say(f"{self._job.folder(repeat).name}: not tried on this server")

    def _finish(
        self, record: "_RunRecord", status: str, reason: str, sampler: MetricsSampler | None
    ) -> None:
        job, samples = self._job, sampler.samples if sampler else []
        kv_cache = sampler.kv_cache if sampler else None
        serve, bench = job.serve, job.bench
        content = {
            "schema": run_folder.SCHEMA,
            "task": job.task,
            "arm": job.arm,
            "label": job.label,
            "repeat": record.repeat,
            "point": commands.point(serve, bench),
            "source": "measured",
            "scheduler_cls": serve.scheduler_cls,
            "scheduler_settings": serve.settings,
            "scheduler_base": self._proof.base,
            "async_scheduling": self._proof.async_scheduling,
            "timeout_s": job.timeout_s,
            "asked": bench.asked,
            "serve_cmd": list(serve.words),
            "bench_cmd": bench.saving_to(record.folder, run_folder.BENCH_FILE),
            **self._origin,
            "kv_cache": asdict(kv_cache) if kv_cache else None,
            "kv_bytes_per_token": self._kv_bytes,
            "server_metrics": summarize(samples, kv_cache) if kv_cache else None,
            "server_start_s": self._start_s,
            "status": status,
            "reason": reason,
            "started": record.started,
            "wall_s": round(record.wall_s, 3),
        }
        run_folder.write_json(record.folder / run_folder.RUN_FILE, content)


class _BenchError(RunError):
    """The bench itself failed: its log says why."""


class _BadResult(_BenchError):
    """The bench came to its end, but its result is not what was asked for."""


class _RunRecord:
    """Number, folder and clock of one run."""

    def __init__(self, job: "Job", repeat: int) -> None:
        self.repeat = repeat
        self.folder = job.folder(repeat)
        self.started = datetime.now(UTC).isoformat(timespec="seconds")
        self.start_s = time.monotonic()
        self._end_s: float | None = None

    @property
    def bench_log(self) -> Path:
        return self.folder / run_folder.BENCH_LOG

    @property
    def wall_s(self) -> float:
        return (time.monotonic() if self._end_s is None else self._end_s) - self.start_s

    def end(self) -> None:
        """Stop the clock, once."""
        if self._end_s is None:
            self._end_s = time.monotonic()


class StallWatch:
    """Notices a server that holds requests and gets nowhere, or answers nothing at all."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._work_done: tuple[float | None, ...] = ()
        self._moved_s = time.monotonic()

    def look(self, sample: Sample | None, failing_since_s: float | None) -> None:
        """Raises RunError ("timeout") once nothing has moved for ``timeout_s`` seconds."""
        now_s = time.monotonic()
        if sample is None:
            if failing_since_s is not None and now_s - failing_since_s > self._timeout_s:
                raise RunError(
                    f"the server answered nothing for {self._timeout_s:g} s (STALL_TIMEOUT_S)",
                    "timeout",
                )
            return
        if not sample.is_busy or sample.work_done != self._work_done:
            self._work_done, self._moved_s = sample.work_done, sample.t_s
        elif sample.t_s - self._moved_s > self._timeout_s:
            raise RunError(
                f"the engine made no token for {self._timeout_s:g} s (STALL_TIMEOUT_S) with"
                f" {sample.requests_running or 0:g} requests running and"
                f" {sample.requests_waiting or 0:g} waiting",
                "timeout",
            )


def bench_problems(path: Path, asked: Mapping[str, int | None]) -> Iterator[str]:
    """Why a bench file is not a valid measurement; nothing for a valid one.

    `vllm bench serve` ends with exit code 0 whether its requests succeeded or not, and a client
    that lost the engine in mid-answer counts a short answer as a success. Success is defined as in
    lab3/bench_file.py, which would bring pandas into the runner.
    """
    try:
        bench = json.loads(path.read_text(encoding="utf-8"))
        answers = list(zip(bench["errors"], bench["ttfts"], bench["output_lens"], strict=True))
    except (ValueError, KeyError, TypeError) as error:
        yield f"{path.name} is not a result with --save-detailed ({error!r})"
        return
    count = len(answers)
    failed = [error for error, ttft_s, _ in answers if error or not ttft_s]
    if failed:
        text = next((error for error in failed if error.strip()), "no error text")
        yield f"{len(failed)} of {count} requests failed ({text.strip().splitlines()[-1][:160]})"
    if asked.get("num_prompts") not in (None, count):
        yield f"{count} requests in the file, {asked['num_prompts']} asked"
    wanted = asked.get("output_tokens")
    lengths = [length for error, ttft_s, length in answers if not error and ttft_s]
    wrong = sum(length != wanted for length in lengths) if wanted is not None else 0
    if wrong:
        yield f"{wrong} of {count} answers not {wanted} tokens long"


def _kv_words(sampler: MetricsSampler) -> str:
    summary = summarize(sampler.samples, sampler.kv_cache)
    return f"KV usage peak {percent_or_not_found(summary['kv_usage_peak'])}"

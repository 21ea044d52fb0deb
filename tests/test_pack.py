"""pack.sh: what is in the hand-in, and that no archive is made of what does not pass its tests."""

import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ASKED = (
    *("task1_vllm_vs_hf.py", "task2.sh", "my_scheduler.py", "task3.sh", "requirements.txt"),
    *("README.md", "report/report.pdf"),
)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A small repository with the asked files, whose one test looks for a file."""
    folder = tmp_path / "repository"
    for name in (*ASKED, "lab3/run.py", ".ci/run", "report/report.typ", ".gitignore"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{name}\n")
    (folder / ".gitignore").write_text("runs/\n*_lab3.zip\n")
    (folder / "runs/a").mkdir(parents=True)
    (folder / "runs/a/bench.json").write_text("{}")
    (folder / "run_tests.sh").write_text(
        'pwd >"$TESTED"; echo "$@" >>"$TESTED"; test -s task2.sh\n'
    )
    shutil.copy(ROOT / "pack.sh", folder)
    for words in (["init", "-q"], ["add", "."]):
        subprocess.run(["git", "-C", str(folder), *words], check=True)
    return folder


def pack(folder: Path, *words: str, **values: str) -> subprocess.CompletedProcess:
    environment = os.environ | {"LAB3_SKIP_SETUP": "1", "TESTED": str(folder.parent / "tested")}
    command = ["bash", str(folder / "pack.sh"), *words]
    return subprocess.run(command, env=environment | values, capture_output=True, text=True)


def packed(folder: Path) -> list[str]:
    with zipfile.ZipFile(folder / "SA25001_张三_lab3.zip") as archive:
        return sorted(name for name in archive.namelist() if not name.endswith("/"))


def test_the_archive_holds_what_the_lab_asks_for_and_no_runs(small: Path) -> None:
    done = pack(small, "SA25001", "张三")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(small / "SA25001_张三_lab3.zip")
    wanted = {*ASKED, "lab3/run.py", "report/report.typ", "pack.sh", "run_tests.sh"}
    assert packed(small) == sorted(f"SA25001_张三_lab3/{name}" for name in wanted)


def test_the_tests_run_on_the_unpacked_copy(small: Path) -> None:
    done = pack(small, "SA25001", "张三", PACK_TESTS='-m "not live" -x')
    where, options = (small.parent / "tested").read_text().splitlines()
    assert done.returncode == 0
    assert where.endswith("/unpacked/SA25001_张三_lab3")
    assert options == "-m not live -x"
    assert not Path(where).exists(), "the copy is removed"


def test_a_failing_test_leaves_no_archive(small: Path) -> None:
    (small / "run_tests.sh").write_text("exit 1\n")
    done = pack(small, "SA25001", "张三")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("error: pack: a test fails")
    assert list(small.glob("*.zip")) == []


def test_what_was_unpacked_can_be_packed_again(small: Path) -> None:
    pack(small, "SA25001", "张三")
    first = packed(small)
    shutil.rmtree(small / ".git")
    # No git here to say what belongs to it.
    shutil.rmtree(small / ".ci")
    (small / ".gitignore").unlink()
    assert pack(small, "SA25001", "张三").returncode == 0
    assert packed(small) == first


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "give student id and name"),
        (("SA 1", "张三"), "no student id"),
        (("SA1", "../张三"), "no name for a file"),
        (("SA1", "张_三"), "no name for a file"),
    ],
)
def test_nonsense_is_one_clear_line(small: Path, words: tuple[str, ...], message: str) -> None:
    done = pack(small, *words)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert message in done.stderr


@pytest.mark.parametrize("name", ASKED)
def test_a_file_that_the_lab_asks_for_must_be_there(small: Path, name: str) -> None:
    (small / name).unlink()
    done = pack(small, "SA25001", "张三")
    assert (done.returncode, done.stderr) == (
        2,
        f"error: pack: {name} is missing; the lab asks for it\n",
    )


def test_the_real_repository_passes_checks_when_unpacked(tmp_path: Path) -> None:
    only = "tests/test_readme.py tests/test_settings.py"
    done = pack(ROOT, "SA25001", "张三", PACK_TESTS=only, PACK_OUT=str(tmp_path))
    assert done.returncode == 0, done.stderr
    names = packed(tmp_path)
    assert {f"SA25001_张三_lab3/{name}" for name in ASKED} <= set(names)
    assert not [name for name in names if "/.ci/" in name or "/runs/" in name]

"""Where a result comes from, on this machine and on poorer ones."""

import os
import subprocess
from pathlib import Path

import psutil
import pytest

from lab3 import provenance


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    command = ["git", *who, *words]
    return subprocess.run(
        command, cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


def test_commit_clean_and_dirty(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "a").write_text("1")
    git(tmp_path, "add", "a")
    git(tmp_path, "commit", "-q", "-m", "a")
    head = git(tmp_path, "rev-parse", "HEAD")
    assert provenance.commit(tmp_path) == (head, False)
    (tmp_path / "untracked").touch()
    assert provenance.commit(tmp_path) == (head, False)
    (tmp_path / "a").write_text("2")
    assert provenance.commit(tmp_path) == (head, True)


def test_no_commit_outside_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert provenance.commit(tmp_path) == (None, None)


def test_a_machine_without_git_and_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert provenance.commit() == (None, None)
    assert provenance.hardware()["gpu"] is None


def test_gpus_are_read_from_nvidia_smi(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'NVIDIA X, 1 MiB, 5.1'\necho 'NVIDIA X, 1 MiB, 5.1'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert provenance.hardware()["gpu"] == ["NVIDIA X, 1 MiB, 5.1"] * 2
    tool.write_text("#!/bin/sh\nexit 0\n")  # a driver without a device
    assert provenance.hardware()["gpu"] is None


def test_hardware_of_this_machine() -> None:
    found = provenance.hardware()
    assert found["cpu"]
    assert 1 <= found["cores"] <= psutil.cpu_count()
    assert found["ram_gib"] == pytest.approx(psutil.virtual_memory().total / 2**30, abs=0.1)


def test_versions_name_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "PACKAGES", ("psutil", "no-such-package"))
    found = provenance.versions()
    assert found["psutil"] == psutil.__version__
    assert found["no-such-package"] is None
    assert found["python"].startswith("3.")


def test_profile_values_in_force(tmp_path: Path) -> None:
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles/small.env").write_text(
        '# a comment\n: "${RATE:=20}"\n: "${KV_GIB:=$RATE}"\n: "${UNSET:=1}"\n'
    )
    environ = {"PROFILE": "small", "RATE": "24", "KV_GIB": "2", "SECRET": "x"}
    found = provenance.profile(environ, tmp_path)
    assert found == {"name": "small", "RATE": "24", "KV_GIB": "2"}
    assert provenance.profile({}, tmp_path) == {"name": ""}
    assert provenance.profile({"PROFILE": "gone"}, tmp_path) == {"name": "gone"}


def test_every_key_of_the_real_profiles_is_found() -> None:
    for path in (provenance.ROOT / "profiles").glob("*.env"):
        keys = [line for line in path.read_text().splitlines() if line and line[0] != "#"]
        environ = {line.split("{")[1].split(":=")[0]: "set" for line in keys}
        found = provenance.profile(environ | {"PROFILE": path.stem})
        assert len(found) == len(keys) + 1, path.name


def test_collect_has_every_part() -> None:
    assert set(provenance.collect()) == {"profile", "versions", "commit", "dirty", "hardware"}

"""A folder in which a script of the repository runs with a stand-in for the `vllm` command."""

import os
import shutil
import sys
from pathlib import Path

from test_processes import ROOT
from test_server import free_port


def sandbox_of(script: str, folder: Path, vllm: str) -> Path:
    """``script`` beside its profiles in ``folder``, without a .venv; ``vllm``: text of a program
    that is called instead."""
    shutil.copy(ROOT / script, folder)
    for name in ("scripts", "profiles"):
        shutil.copytree(ROOT / name, folder / name)
    program = folder / "bin/vllm"
    program.parent.mkdir()
    program.write_text(vllm)
    program.chmod(0o755)
    return folder


def environment_of(root: Path, **values: str) -> dict[str, str]:
    """The quick profile, nothing set up, the program of ``root``/bin, and ``values``."""
    folders = [root / "bin", Path(sys.executable).parent]
    own = {
        "PATH": os.pathsep.join([*map(str, folders), os.environ["PATH"]]),
        "PYTHONPATH": str(ROOT),
        "PROFILE": "cpu",
        "LAB3_SKIP_SETUP": "1",
        "PORT": str(free_port()),
        "MODEL": "models/stub",
    }
    return os.environ | own | values

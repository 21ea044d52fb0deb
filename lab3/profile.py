"""Reads ``profiles/<name>.env`` from Python.

A profile is a shell file of lines ``: "${KEY:=value}"``; the shell itself reads it, so that a value
from the environment wins here just as it does in the scripts.
"""

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
PROFILES_DIR = REPOSITORY / "profiles"

_KEY = re.compile(r'^: "\$\{([A-Z][A-Z0-9_]*):=', re.MULTILINE)
_PRINT_KEYS = 'source "$1"; shift; for key; do printf "%s=%s\\0" "$key" "${!key}"; done'


class ProfileError(ValueError):
    """One line: what is wrong with a profile and what to do."""


def available() -> list[str]:
    """Names of all profiles, sorted."""
    return sorted(path.stem for path in PROFILES_DIR.glob("*.env"))


def device(env: Mapping[str, str] | None = None) -> str:
    """``cpu`` or ``gpu``: what scripts/device.sh says; raises ProfileError if it refuses."""
    return _bash([str(REPOSITORY / "scripts/device.sh")], env).strip()


def load(name: str | None = None, env: Mapping[str, str] | None = None) -> dict[str, str]:
    """All keys of a profile as strings, plus ``PROFILE``, its name.

    ``name`` defaults to ``$PROFILE`` and then to the profile of this machine's device. Values in
    ``env`` (default: the process environment) override the profile's. Raises ProfileError.
    """
    env = os.environ if env is None else env
    name = name or env.get("PROFILE") or device(env)
    path = PROFILES_DIR / f"{name}.env"
    if name not in available():
        raise ProfileError(f"no profile {name!r}: set PROFILE to one of: {', '.join(available())}")
    keys = _KEY.findall(path.read_text(encoding="utf-8"))
    output = _bash(["-euc", _PRINT_KEYS, "bash", str(path), *keys], env)
    pairs = (entry.partition("=") for entry in output.split("\0") if entry)
    return {"PROFILE": name} | {key: value for key, _, value in pairs}


def _bash(arguments: list[str], env: Mapping[str, str] | None) -> str:
    result = subprocess.run(
        ["bash", *arguments],
        env=None if env is None else dict(env),
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode:
        lines = result.stderr.strip().splitlines()
        raise ProfileError(lines[-1] if lines else "bash could not read the profile")
    return result.stdout

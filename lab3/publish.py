"""Takes what is worth keeping of a finished run into results/: python -m lab3.publish RUNS OUT

    python -m lab3.publish runs/task3-cpu results/task3-cpu

Copies tables (*.md, *.csv) and figures (*.png) and writes run.json: the run.json of every
single run, with what all of them have in common said once. Raw bench files, step records and logs
stay where they are. Paths of this machine are cut out. Exit code 2 when there is nothing to take.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lab3.provenance import ROOT
from lab3.run_folder import RUN_FILE, read_run

KEPT = ("*.md", "*.csv", "*.png")
_NO_VALUE = object()


def shortened(content: Any, places: Mapping[str, str]) -> Any:
    """``content`` with each path of ``places`` replaced by its short name, at any depth."""
    if isinstance(content, str):
        for path, name in places.items():
            content = content.replace(path, name)
        return content
    if isinstance(content, list):
        return [shortened(item, places) for item in content]
    if isinstance(content, dict):
        return {key: shortened(value, places) for key, value in content.items()}
    return content


def factored(runs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """{"common": what all runs have, "runs": what each has besides, by folder}."""
    first = next(iter(runs.values()))
    common = {
        key: value
        for key, value in first.items()
        if all(run.get(key, _NO_VALUE) == value for run in runs.values())
    }
    own = {
        name: {key: value for key, value in run.items() if key not in common}
        for name, run in runs.items()
    }
    return {"common": common, "runs": own}


def runs_below(folder: Path) -> dict[str, dict[str, Any]]:
    """The run.json of the folder itself (Task 1) or of each run folder in it."""
    places = [folder, *sorted(path for path in folder.iterdir() if path.is_dir())]
    found = {place.name: read_run(place) for place in places}
    return {name: run for name, run in found.items() if run is not None}


def publish(folder: Path, out: Path) -> list[Path]:
    """Copies and writes; returns the new files. Raises ValueError when there is no finished run."""
    runs = runs_below(folder) if folder.is_dir() else {}
    kept = [path for pattern in KEPT for path in sorted(folder.glob(pattern))]
    if not runs or not kept:
        raise ValueError(f"{folder} has no table of a finished run")
    out.mkdir(parents=True, exist_ok=True)
    made = [Path(shutil.copyfile(path, out / path.name)) for path in kept]
    places = {str(folder.resolve()): "RUNS", str(ROOT): ".", str(Path.home()): "~"}
    content = factored(shortened(runs, places))
    target = out / RUN_FILE
    text = json.dumps(content, indent=1, ensure_ascii=False)
    target.write_text(text + "\n", encoding="utf-8")
    return [*made, target]


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m lab3.publish", description=__doc__)
    parser.add_argument("runs", type=Path, help="folder of a finished run: runs/task3-cpu")
    parser.add_argument("out", type=Path, help="folder of what is kept: results/task3-cpu")
    args = parser.parse_args(argv)
    try:
        print("\n".join(map(str, publish(args.runs, args.out))))
    except ValueError as error:
        print(f"error: publish: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The folder of one run: what is in it, when it counts as finished, how it is written.

run.json comes last and by rename, so that a folder with a run.json is a whole one, whenever the
program was killed.
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab3.commands import BenchCommand, ServeCommand

RUN_FILE, BENCH_FILE, PARTIAL_BENCH_FILE = "run.json", "bench.json", "bench.part.json"
SERVER_LOG, BENCH_LOG = "server.log", "bench.log"
STEP_FILE, METRICS_FILE = "steps.jsonl", "metrics.jsonl"
SCHEMA = 1


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write ``content`` so that ``path`` holds all of it or what it held before."""
    partial = path.with_name(path.name + ".part")
    partial.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(partial, path)


def to_json(content: Mapping[str, Any]) -> str:
    """``content`` on one line, keys sorted."""
    return json.dumps(content, sort_keys=True)


def read_run(folder: Path) -> dict[str, Any] | None:
    """The folder's run.json, None when there is none or it is broken."""
    try:
        content = json.loads((folder / RUN_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def is_refused(folder: Path) -> bool:
    """Whether vLLM refused the options of this run."""
    return (read_run(folder) or {}).get("status") == "refused"


def start_afresh(folder: Path) -> None:
    """An empty folder; what a half-written run left there goes."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def why_redo(
    folder: Path, serve: ServeCommand, bench: BenchCommand, provenance: Mapping[str, Any]
) -> str | None:
    """Why the run in ``folder`` has to be made (again); None when it is finished.

    One that vLLM refused is finished as well. A finished run counts only for the same commands
    (port and file names aside), the same vLLM and the same VLLM_* settings of the profile. The
    commit may differ: a result says its own.
    """
    if not folder.exists():
        return "new"
    run = read_run(folder)
    if run is None or not (is_refused(folder) or (folder / BENCH_FILE).exists()):
        return "half-written"
    if run.get("status") not in ("ok", "refused"):
        return f"it ended as {run.get('status')}"
    try:
        old_serve = ServeCommand.read(run["serve_cmd"]).comparable()
        old_bench = BenchCommand.read(run["bench_cmd"]).comparable()
    except (KeyError, TypeError, ValueError):
        return "its run.json has no commands"
    changes = [
        *_changes(old_serve, serve.comparable()),
        *_changes(old_bench, bench.comparable()),
        *_changed_keys(_surroundings(run), _surroundings(provenance)),
    ]
    return f"changed: {', '.join(changes[:3])}" if changes else None


def _changes(old: list[str], new: list[str]) -> Iterator[str]:
    if old == new:
        return
    for position in range(max(len(old), len(new))):
        before, after = (words[position : position + 1] for words in (old, new))
        if before != after:
            name = new[position - 1] if position and after else ""
            yield f"{name} {' '.join(before) or '-'} -> {' '.join(after) or '-'}".strip()
            if len(old) != len(new):
                # From here on the words are only shifted against each other.
                return


def _changed_keys(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for key in sorted(old.keys() | new.keys()):
        if old.get(key) != new.get(key):
            yield f"{key} {old.get(key)} -> {new.get(key)}"


def _surroundings(run: Mapping[str, Any]) -> dict[str, Any]:
    profile, versions = run.get("profile") or {}, run.get("versions") or {}
    settings = {key: value for key, value in profile.items() if key.startswith("VLLM_")}
    return settings | {name: versions.get(name) for name in ("vllm", "torch")}


def keep_timeout(folder: Path, timeout_s: float) -> None:
    """Note the request timeout now in force in a finished run: it is applied when reading."""
    run = read_run(folder)
    if run is not None and run.get("timeout_s") != timeout_s:
        write_json(folder / RUN_FILE, run | {"timeout_s": timeout_s})


@dataclass
class StepCutter:
    """Cuts the step record of a server that serves several runs into one record a run.

    ``record``: the file the scheduler writes; with data parallelism the other engines' files lie
    beside it (steps.dp1.jsonl). Policy counters, which are written only when they change, are
    carried into the first step of a run, so that every run starts from known ones.
    """

    record: Path | None

    def __post_init__(self) -> None:
        self._read_bytes: dict[Path, int] = {}
        self._counters: dict[Path, Any] = {}

    def cut(self, folder: Path, start_s: float, end_s: float) -> None:
        """Write the steps called in ``start_s..end_s`` (time.monotonic()) into ``folder``.

        Times have to grow from call to call; nothing is written for an engine without steps.
        """
        for source in self._sources():
            kept: list[str] = []
            for line, step in self._new_steps(source):
                if start_s <= step.get("t_s", 0.0) <= end_s:
                    if not kept and "counters" not in step and source in self._counters:
                        line = json.dumps(step | {"counters": self._counters[source]})
                    kept.append(line)
                if "counters" in step:
                    self._counters[source] = step["counters"]
            if kept:
                target = folder / (Path(STEP_FILE).stem + self._suffix(source))
                target.write_text("\n".join(kept) + "\n", encoding="utf-8")

    def _sources(self) -> list[Path]:
        if self.record is None:
            return []
        others = self.record.parent.glob(f"{self.record.stem}.dp*{self.record.suffix}")
        return [path for path in (self.record, *sorted(others)) if path.exists()]

    def _suffix(self, source: Path) -> str:
        return source.name.removeprefix(self.record.stem)

    def _new_steps(self, source: Path) -> Iterator[tuple[str, dict[str, Any]]]:
        with source.open("rb") as file:
            file.seek(self._read_bytes.get(source, 0))
            content = file.read()
        # The last line may still be in the making; it is read the next time.
        whole = content[: content.rfind(b"\n") + 1]
        self._read_bytes[source] = self._read_bytes.get(source, 0) + len(whole)
        for line in whole.decode("utf-8", errors="replace").splitlines():
            try:
                yield line, json.loads(line)
            except ValueError:
                continue

    def remove_sources(self) -> None:
        """Delete the server's record; the runs' folders hold what belongs to them."""
        for source in self._sources():
            source.unlink()

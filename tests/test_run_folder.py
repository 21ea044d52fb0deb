"""When a folder counts as finished, and how one server's step record is divided."""

import json
from pathlib import Path

import pytest

from lab3.commands import BenchCommand, ServeCommand
from lab3.run_folder import (
    StepCutter,
    keep_timeout,
    read_run,
    start_afresh,
    why_redo,
    write_json,
)

SERVE = ["vllm", "serve", "m", "--port", "8000", "--max-num-seqs", "4"]
BENCH = ["vllm", "bench", "serve", "--port", "8000", "--num-prompts", "20"]
ORIGIN = {"profile": {"VLLM_X": "1", "OTHER": "a"}, "versions": {"vllm": "0.32.0", "numpy": "2"}}


def finished(folder: Path, **changes: object) -> Path:
    folder.mkdir()
    (folder / "bench.json").write_text("{}")
    run = {"status": "ok", "serve_cmd": SERVE, "bench_cmd": BENCH, **ORIGIN, "timeout_s": 10.0}
    write_json(folder / "run.json", run | changes)
    return folder


def why(folder: Path, serve: list[str] = SERVE, bench: list[str] = BENCH, **origin: object):
    asked = ServeCommand.read(serve), BenchCommand.read(bench)
    return why_redo(folder, *asked, ORIGIN | origin)


def test_a_finished_run_is_not_made_again(tmp_path: Path) -> None:
    assert why(finished(tmp_path / "r1")) is None


def test_a_new_run_is_made(tmp_path: Path) -> None:
    assert why(tmp_path / "r1") == "new"


@pytest.mark.parametrize("rest", ["", "{", "[]", "null", '{"status": "ok"'])
def test_a_half_written_run_is_made_again(tmp_path: Path, rest: str) -> None:
    folder = finished(tmp_path / "r1")
    (folder / "run.json").write_text(rest)
    assert why(folder) == "half-written"


def test_a_run_without_its_result_is_made_again(tmp_path: Path) -> None:
    folder = finished(tmp_path / "r1")
    (folder / "bench.json").unlink()
    assert why(folder) == "half-written"


@pytest.mark.parametrize("status", ["failed", "timeout"])
def test_a_run_that_went_wrong_is_made_again(tmp_path: Path, status: str) -> None:
    assert why(finished(tmp_path / "r1", status=status)) == f"it ended as {status}"


def test_a_changed_command_is_named(tmp_path: Path) -> None:
    folder = finished(tmp_path / "r1")
    assert why(folder, serve=[*SERVE[:-1], "8"]) == "changed: --max-num-seqs 4 -> 8"
    assert why(folder, bench=[*BENCH, "--seed", "1"]) == "changed: 20 - -> --seed"
    assert why(folder, serve=[*SERVE, "--port", "9000"]) is None


def test_a_changed_vllm_is_named_and_another_package_is_not(tmp_path: Path) -> None:
    folder = finished(tmp_path / "r1")
    newer = {"vllm": "0.33.0", "numpy": "3"}
    assert why(folder, versions=newer) == "changed: vllm 0.32.0 -> 0.33.0"
    assert why(folder, profile={"VLLM_X": "2", "OTHER": "b"}) == "changed: VLLM_X 1 -> 2"


def test_a_run_without_commands_is_made_again(tmp_path: Path) -> None:
    assert why(finished(tmp_path / "r1", serve_cmd=None)) == "its run.json has no commands"


def test_keep_timeout_changes_nothing_else(tmp_path: Path) -> None:
    folder = finished(tmp_path / "r1")
    before = read_run(folder)
    keep_timeout(folder, 3.0)
    assert read_run(folder) == before | {"timeout_s": 3.0}


def test_write_json_leaves_the_old_file_when_it_cannot_write(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    assert json.loads(path.read_text()) == {"a": 1}


def test_start_afresh_empties_the_folder(tmp_path: Path) -> None:
    folder = finished(tmp_path / "r1")
    start_afresh(folder)
    assert list(folder.iterdir()) == []


# -- dividing a step record --


def append(path: Path, *steps: dict, tail: str = "") -> None:
    with path.open("a") as file:
        file.write("".join(json.dumps(step) + "\n" for step in steps) + tail)


def steps_of(folder: Path, name: str = "steps.jsonl") -> list[dict]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def two_folders(tmp_path: Path) -> tuple[Path, Path]:
    first, second = tmp_path / "r1", tmp_path / "r2"
    first.mkdir()
    second.mkdir()
    return first, second


def test_steps_are_cut_by_time_and_counters_carried(tmp_path: Path) -> None:
    record = tmp_path / "sjf.steps.jsonl"
    first, second = two_folders(tmp_path)
    cutter = StepCutter(record)
    append(record, {"t_s": 1.0, "counters": {"x": 1}}, {"t_s": 2.0}, {"t_s": 3.0})
    cutter.cut(first, 1.5, 3.5)
    append(record, {"t_s": 4.0, "counters": {"x": 7}}, {"t_s": 5.0}, {"t_s": 6.0})
    cutter.cut(second, 4.5, 9.0)
    assert steps_of(first) == [{"t_s": 2.0, "counters": {"x": 1}}, {"t_s": 3.0}]
    assert steps_of(second) == [{"t_s": 5.0, "counters": {"x": 7}}, {"t_s": 6.0}]


def test_a_line_in_the_making_is_read_when_it_is_whole(tmp_path: Path) -> None:
    record = tmp_path / "steps.jsonl"
    first, second = two_folders(tmp_path)
    cutter = StepCutter(record)
    append(record, {"t_s": 1.0}, tail='{"t_s": ')
    cutter.cut(first, 0.0, 9.0)
    append(record, tail='2.0}\n{"t_s": 3')
    cutter.cut(second, 0.0, 9.0)
    assert steps_of(first) == [{"t_s": 1.0}]
    assert steps_of(second) == [{"t_s": 2.0}]


def test_every_engine_keeps_its_own_file(tmp_path: Path) -> None:
    record = tmp_path / "a.steps.jsonl"
    first, _ = two_folders(tmp_path)
    append(record, {"t_s": 1.0})
    append(tmp_path / "a.steps.dp1.jsonl", {"t_s": 2.0})
    cutter = StepCutter(record)
    cutter.cut(first, 0.0, 9.0)
    assert steps_of(first) == [{"t_s": 1.0}]
    assert steps_of(first, "steps.dp1.jsonl") == [{"t_s": 2.0}]
    cutter.remove_sources()
    assert not list(tmp_path.glob("*.jsonl"))


def test_no_record_no_file(tmp_path: Path) -> None:
    first, second = two_folders(tmp_path)
    StepCutter(None).cut(first, 0.0, 9.0)
    StepCutter(tmp_path / "never-written.jsonl").cut(second, 0.0, 9.0)
    assert list(first.iterdir()) == list(second.iterdir()) == []

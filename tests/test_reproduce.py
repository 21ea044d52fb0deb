"""A fresh run against a committed one: directions count, numbers don't."""

import shutil
from pathlib import Path

import pandas as pd
import pytest

from lab3 import reproduce

COMMITTED = Path(__file__).resolve().parent.parent / "results" / "task3-cpu"
KEYS = {"task": "task3", "profile": "cpu", "label": "", "source": "measured", "valid": True}


def write(folder: Path, arms: dict[str, dict[str, tuple[float, ...]]], task: str = "task3") -> Path:
    """A summary.csv of arms (or values of X) with the repeats of each metric."""
    rows = []
    for arm, metrics in arms.items():
        point = f'{{"max_num_batched_tokens": {arm}}}' if task == "task2" else "{}"
        row = KEYS | {"task": task, "arm": arm, "label": arm.title(), "point": point, "repeats": 0}
        if task == "task2":
            row["arm"] = "default"
        for metric in reproduce.STRATEGY_METRICS:
            values = sorted(metrics.get(metric, (10.0, 10.1, 10.2)))
            row[metric] = values[len(values) // 2]
            row[f"{metric}_min"], row[f"{metric}_max"] = values[0], values[-1]
            row["repeats"] = len(values)
        rows.append(row)
    folder.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows).to_csv(folder / "summary.csv", index=False)
    return folder


def strategies(folder: Path, **of_a: tuple[float, ...]) -> Path:
    return write(folder, {"default": {}, "a": of_a})


def verdicts(fresh: Path, committed: Path) -> dict[str, str]:
    return {claim: word for claim, *_, word in reproduce.judged(fresh, committed)}


WORSE = (20.0, 21.0, 22.0)


@pytest.mark.parametrize(
    ("fresh", "word", "code"),
    [
        ((900.0, 990.0, 950.0), "same", 0),
        ((10.0, 10.1, 10.2), "not shown", 0),
        ((5.0, 30.0, 12.0), "not shown", 0),
        ((1.0, 1.1, 1.2), "OPPOSITE", 1),
        ((1.0,), "OPPOSITE", 1),
        ((99.0,), "same", 0),
    ],
)
def test_a_claim_needs_the_direction_not_the_number(tmp_path, capsys, fresh, word, code):
    committed = strategies(tmp_path / "committed", itl_p99_ms=WORSE)
    own = strategies(tmp_path / "fresh", itl_p99_ms=fresh)
    assert verdicts(own, committed) == {"A against Default: ITL P99": word}
    assert reproduce.main([str(own), str(committed)]) == code
    assert capsys.readouterr().out.splitlines()[-1] == f"1 {word}"


def test_what_the_committed_run_does_not_show_is_no_claim(tmp_path):
    committed = strategies(tmp_path / "committed", itl_p99_ms=(9.0, 20.0, 11.0))
    own = strategies(tmp_path / "fresh", itl_p99_ms=WORSE)
    assert verdicts(own, committed) == {}


def test_an_arm_that_was_not_run_again_turns_nothing_round(tmp_path):
    committed = strategies(tmp_path / "committed", e2e_mean_ms=WORSE)
    own = write(tmp_path / "fresh", {"default": {}})
    assert verdicts(own, committed) == {"A against Default: E2E mean": "not run"}
    assert reproduce.main([str(own), str(committed)]) == 0


def test_preemptions_where_there_were_none(tmp_path):
    none = (0.0, 0.0, 0.0)
    arms = {"default": {"preemptions": none}, "a": {"preemptions": (4.0, 5.0, 6.0)}}
    committed = write(tmp_path / "committed", arms)
    assert verdicts(committed, committed) == {"A against Default: preemptions": "same"}


def test_task2_compares_the_ends_of_the_sweep(tmp_path):
    small = {"ttft_p50_ms": WORSE}
    committed = write(tmp_path / "c", {"512": {}, "2048": {}, "64": small}, task="task2")
    own = write(tmp_path / "f", {"64": {}, "512": {}, "2048": small}, task="task2")
    claim = "largest X against smallest: TTFT P50"
    assert verdicts(committed, committed) == {claim: "same"}
    assert verdicts(own, committed) == {claim: "OPPOSITE"}


def test_task1_compares_vllm_with_each_plan(tmp_path):
    columns = "mode,plan,label,ok,output_tokens_per_s,kv_peak_bytes,kv_waste_share\n"
    for name, speed in (("committed", 250), ("fresh", 20)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "task1.csv").write_text(
            f"{columns}fixed,hf-serial,HF serial,True,23,10,0\nfixed,hf-static,HF static,False,,,\n"
            f"fixed,vllm,vLLM offline,True,{speed},90,0\n"
        )
    assert verdicts(tmp_path / "fresh", tmp_path / "committed") == {
        "vLLM against HF serial: throughput": "OPPOSITE",
        "vLLM against HF serial: peak KV cache": "same",
    }


def test_folders_of_one_name_are_paired(tmp_path, capsys):
    for place, values in (("results", WORSE), ("runs", (1.0, 1.1, 1.2))):
        strategies(tmp_path / place / "task3-cpu", itl_p99_ms=values)
        (tmp_path / place / "other").mkdir()
    strategies(tmp_path / "results" / "only-committed", itl_p99_ms=WORSE)
    assert reproduce.main([str(tmp_path / "runs"), str(tmp_path / "results")]) == 1
    assert capsys.readouterr().out.splitlines()[0] == "task3-cpu"


@pytest.mark.parametrize("make", [[], ["empty"]])
def test_nothing_to_compare_is_one_line(tmp_path, capsys, make):
    for name in make:
        (tmp_path / name).mkdir()
    assert reproduce.main([str(tmp_path / "empty"), str(COMMITTED)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: reproduce: ")
    assert error.count("\n") == 1


def test_the_committed_run_agrees_with_itself(tmp_path, capsys):
    copy = shutil.copytree(COMMITTED, tmp_path / "copy")
    assert reproduce.main([str(copy), str(COMMITTED)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith(" same")

"""The tables end to end: run folders in, files, text and exit code out."""

import json
import math

import pandas as pd
import pytest
from factories import bench_result, engine_trace, write_run

from lab3.captions import fidelity_lines, provenance_line
from lab3.results import RunInfo
from lab3.table import main
from lab3.text_table import Cell, Table, count, number, share, to_markdown, to_text

ARMS = {
    "default": ("vLLM default", {}),
    "passthrough": ("Passthrough", {}),
    "prefill-first": ("A", {"exclusive": True}),
}


@pytest.fixture(scope="module")
def traces():
    return {
        (arm, repeat): engine_trace(n=80, speed=1 + 0.02 * repeat, **kwargs)
        for arm, (_, kwargs) in ARMS.items()
        for repeat in (1, 2)
    }


@pytest.fixture
def runs_dir(tmp_path, traces):
    for (arm, repeat), (bench, steps) in traces.items():
        folder = tmp_path / "runs" / "task3-cpu" / f"{arm}-r{repeat}"
        steps = None if arm == "default" else steps
        write_run(folder, bench, steps, arm=arm, label=ARMS[arm][0], repeat=repeat)
    return tmp_path / "runs"


def table(runs_dir, capsys, *options):
    code = main([str(runs_dir), "--out", str(runs_dir / "out"), *options])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def cells(markdown: str, title: str) -> dict[str, list[str]]:
    """Rows of one Markdown table by their first cell."""
    block = markdown.split(f"**{title}**")[1].split("\n\n")[1]
    rows = [[c.strip() for c in line.strip("|").split("|")] for line in block.splitlines()[2:]]
    return {row[0]: row[1:] for row in rows}


def test_the_policys_own_counters_are_printed_and_saved(runs_dir, traces, capsys):
    for repeat, jain in ((1, 990), (2, 970)):
        bench, steps = traces["default", repeat]
        steps = [*steps[:-1], steps[-1] | {"counters": {"jain_index_permille": jain, "lifts": 4}}]
        folder = runs_dir / "task3-cpu" / f"fair_share-r{repeat}"
        write_run(folder, bench, steps, arm="fair_share", label="B2", repeat=repeat)
    _, out, _ = table(runs_dir, capsys)
    assert "Counters of B2: jain_index_permille 980, lifts 4." in out
    assert out.count("Counters of") == 1
    summary = pd.read_csv(runs_dir / "out" / "summary.csv").set_index("arm")
    assert summary.counter_jain_index_permille["fair_share"] == 980
    assert math.isnan(summary.counter_lifts["default"])


def test_clean_runs_give_all_files_and_exit_code_0(runs_dir, capsys):
    code, out, _ = table(runs_dir, capsys, "--repeats", "2", "--arms", *ARMS)
    assert code == 0
    assert "NOT COMPLETE" not in out
    rows = pd.read_csv(runs_dir / "out" / "runs.csv")
    summary = pd.read_csv(runs_dir / "out" / "summary.csv")
    assert (len(rows), len(summary)) == (6, 3)
    assert (runs_dir / "out" / "table.txt").read_text() == out
    assert summary.ttft_p50_ms.iloc[0] == pytest.approx(rows.ttft_p50_ms[:2].median())


def test_the_tables_hold_the_numbers_of_the_summary(runs_dir, capsys):
    table(runs_dir, capsys)
    summary = pd.read_csv(runs_dir / "out" / "summary.csv").set_index("label")
    main_table = cells((runs_dir / "out" / "table.md").read_text(), "Task 3: strategies")
    for label, row in main_table.items():
        own = summary.loc[label]
        low, high = number(own.ttft_p99_ms_min), number(own.ttft_p99_ms_max)
        assert row[1] == f"{number(own.ttft_p99_ms)} [{low}–{high}]"
        assert row[6].startswith(number(own.output_tokens_per_s))
        assert row[7] == "0"
    assert main_table["vLLM default"][4] == "–", "the default has no step record"
    assert main_table["A"][4] != "–"


def test_ratios_show_that_a_worsens_the_itl_tail_and_passthrough_nothing(runs_dir, capsys):
    table(runs_dir, capsys)
    ratios = cells((runs_dir / "out" / "table.md").read_text(), "Ratio to vLLM default")
    assert set(ratios) == {"Passthrough", "A"}
    assert all(cell.startswith("~") for cell in ratios["Passthrough"])
    itl_p99 = ratios["A"][3]
    assert not itl_p99.startswith("~")
    assert float(itl_p99.rstrip("x")) > 1.3


def test_another_baseline_can_be_chosen(runs_dir, capsys):
    _, out, _ = table(runs_dir, capsys, "--baseline", "passthrough")
    assert "Ratio to Passthrough" in out
    _, out, _ = table(runs_dir, capsys, "--baseline", "nobody")
    assert "Ratio to" not in out


def test_running_it_again_changes_nothing(runs_dir, capsys):
    first = table(runs_dir, capsys)
    files = {p.name: p.read_bytes() for p in (runs_dir / "out").iterdir()}
    assert table(runs_dir, capsys) == first
    assert files == {p.name: p.read_bytes() for p in (runs_dir / "out").iterdir()}


def test_a_failed_arm_is_named_and_the_others_are_tabled(runs_dir, capsys, traces):
    broken = {"arm": "sjf", "label": "SJF", "status": "failed", "reason": "server died"}
    write_run(runs_dir / "task3-cpu" / "sjf-r1", None, **broken)
    code, out, _ = table(runs_dir, capsys, "--arms", *ARMS, "dla")
    assert code == 1
    assert "NOT COMPLETE: sjf-r1: failed: server died" in out
    assert "NOT COMPLETE: SJF: 0 of 2 repeats usable" in out
    assert "NOT COMPLETE: dla: no run" in out
    assert "SJF (failed)" in cells(
        (runs_dir / "out" / "table.md").read_text(), "Task 3: strategies"
    )
    assert "Passthrough" in out


def test_a_run_with_failed_requests_is_marked_and_counted(runs_dir, capsys):
    bench = bench_result([0.1] * 20, [[0.01] * 4] * 20, failed=(3, 4))
    write_run(runs_dir / "task3-cpu" / "sjf-r1", bench, arm="sjf", label="SJF")
    code, out, _ = table(runs_dir, capsys)
    assert code == 1
    assert "sjf-r1: with failures: 2 of 20 requests failed" in out
    row = cells((runs_dir / "out" / "table.md").read_text(), "Task 3: strategies")["SJF (failures)"]
    assert row[-1] == "2 (10.0%)"


def test_timeouts_are_shown_as_number_and_rate_without_failing_the_run(tmp_path, capsys):
    bench = bench_result([0.1] * 19 + [8.0], [[0.01] * 4] * 20)
    write_run(tmp_path / "task3-cpu" / "default-r1", bench, timeout_s=5.0)
    code, _, _ = table(tmp_path, capsys)
    assert code == 0
    rows = cells((tmp_path / "out" / "table.md").read_text(), "Task 3: strategies")
    assert rows["vLLM default"][-1] == "1 (5.0%)"


def test_nothing_usable_is_exit_code_2_with_reasons_and_no_files(tmp_path, capsys):
    bench = bench_result([0.0] * 5, [[]] * 5, errors=["Cannot connect"] * 5)
    write_run(tmp_path / "task3-cpu" / "default-r1", bench)
    code, out, err = table(tmp_path, capsys)
    assert code == 2
    assert out == ""
    assert "0 of 5 requests succeeded (Cannot connect)" in err
    assert not (tmp_path / "out").exists()


def test_an_empty_folder_is_exit_code_2(tmp_path, capsys):
    code, _, err = table(tmp_path, capsys)
    assert code == 2
    assert "run task3 first" in err


def test_a_file_that_disagrees_with_vllms_own_numbers_is_reported(runs_dir, capsys, traces):
    bench = traces["default", 1][0] | {"mean_ttft_ms": 1.0}
    write_run(runs_dir / "task3-cpu" / "default-r1", bench, label="vLLM default")
    code, out, _ = table(runs_dir, capsys)
    assert code == 1
    assert "default-r1: differs from vLLM's own numbers: mean_ttft_ms" in out


def test_a_sweep_gets_its_table_findings_and_goodput(tmp_path, capsys):
    for x in (64, 512):
        for repeat in (1, 2):
            bench, steps = engine_trace(n=80, budget=x, rate=18, speed=1 + 0.01 * repeat)
            point = {"max_num_batched_tokens": x, "request_rate": 18.0}
            info = {"task": "task2", "arm": "sweep", "label": "Sweep", "repeat": repeat}
            folder = tmp_path / "task2-cpu" / f"x{x}-r{repeat}"
            write_run(folder, bench, steps, point=point, **info)
    refused = {"status": "refused", "reason": "X < max_num_seqs", "task": "task2"}
    refused["point"] = {"max_num_batched_tokens": 16, "request_rate": 18.0}
    write_run(tmp_path / "task2-cpu" / "x16-r1", None, **refused)
    goals = ("--ttft-slo-ms", "100", "--itl-slo-ms", "30")
    code, out, _ = table(tmp_path, capsys, "--task", "task2", *goals)
    assert code == 0, "a point that vLLM refuses is no failure"
    assert "x16-r1, refused: X < max_num_seqs." in out
    assert "take X=" in out
    rows = cells((tmp_path / "out" / "table.md").read_text(), "Task 2: max_num_batched_tokens (X)")
    assert list(rows) == ["64", "512", "16 (refused)"]


@pytest.mark.parametrize("goal", ["abc", "-3", "nan"])
def test_a_goal_that_is_no_positive_number_is_refused(runs_dir, capsys, goal):
    code, _, err = table(runs_dir, capsys, "--ttft-slo-ms", goal, "--itl-slo-ms", "30")
    assert code == 2
    assert "must be positive numbers" in err


def test_goals_can_come_from_the_profile(tmp_path, capsys):
    bench, steps = engine_trace(n=40)
    profile = {"name": "cpu", "TTFT_SLO_MS": "100", "ITL_SLO_MS": "30"}
    for x in (64, 512):
        info = {"point": {"max_num_batched_tokens": x}, "task": "task2", "profile": profile}
        write_run(tmp_path / f"x{x}-r1", bench, steps, **info)
    _, out, _ = table(tmp_path, capsys, "--task", "task2")
    assert "TTFT <= 100 ms and ITL P99 <= 30 ms" in out


# Lines below the tables


def info(**raw):
    return RunInfo(folder=None, raw=raw)


def test_provenance_says_measured_or_simulated_and_never_leaves_it_out():
    hardware = {"cpu": "X", "cores": 2, "ram_gib": 24.0, "gpu": None}
    measured = info(source="measured", hardware=hardware, commit="abcdef012", dirty=True)
    simulated = info(source="simulated", cost_model="a100-7b", hardware=hardware)
    line = provenance_line([measured])
    assert line.startswith("Measured; X, 2 cores, 24 GiB, no GPU; vLLM unknown;")
    assert "commit abcdef0+changes" in line
    assert provenance_line([simulated]).startswith("SIMULATED (cost model a100-7b)")
    assert provenance_line([measured, simulated]).startswith("Measured and SIMULATED")


def test_provenance_names_the_load_and_every_day():
    asked = {"num_prompts": 10, "input_tokens": 8, "output_tokens": 4}
    runs = [
        info(asked=asked, point={"request_rate": 5}, started=f"2026-01-0{day}T00:00:00")
        for day in (3, 1, 2)
    ]
    line = provenance_line(runs)
    assert "10 requests of 8/4 tokens at 5/s" in line
    assert line.endswith("2026-01-01 to 2026-01-03")


def test_many_tiny_gaps_bring_a_warning_that_names_the_arm():
    summary = pd.DataFrame(
        {"label": ["fine", "busy"], "tiny_gap_share": [0.01, 0.2], "itl_unit": ["token", "chunk"]}
    )
    lines = fidelity_lines(summary)
    assert "fine 1.0%, busy 20.0%" in lines[0]
    assert lines[1].startswith("WARNING: above 5% for busy:")
    assert "per chunk" in lines[2]
    assert len(fidelity_lines(summary[:1])) == 1


# Cells and layout


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.1234, "0.12"), (9.876, "9.88"), (12.34, "12.3"), (1234.5, "1,234"), (0.0, "0")],
)
def test_numbers_have_about_three_digits(value, text):
    assert number(value) == text


def test_unknown_values_are_dashes_not_zeros():
    assert number(math.nan) == count(math.nan) == share(math.nan) == "–"
    assert (count(1234.0), count(2.5), share(0.1234)) == ("1,234", "2.5", "12.3%")


def test_text_puts_ranges_below_their_values_and_markdown_behind_them():
    made = Table("T", (("arm", ""), ("TTFT", "ms")), ((Cell("A"), Cell("1.0", "0.9–1.1")),))
    lines = to_text(made).splitlines()
    assert lines[-2].split() == ["A", "1.0"]
    assert lines[-1].split() == ["0.9–1.1"]
    assert lines[-2].rindex("0") == lines[-1].rindex("1")
    assert "| A | 1.0 [0.9–1.1] |" in to_markdown(made)


def test_the_runs_table_is_plain_csv_with_units_in_the_names(runs_dir, capsys):
    table(runs_dir, capsys)
    rows = pd.read_csv(runs_dir / "out" / "runs.csv")
    assert json.loads(rows.point[0]) == {}
    known = ("_ms", "_tokens", "_per_s", "_s", "_share", "_rate", "_tax", "_mib")
    plain = {"repeat", "preemptions", "valid", "problems", "notes"}
    for name in rows.columns[rows.dtypes.map(pd.api.types.is_numeric_dtype)]:
        assert name.endswith(known) or name.startswith("requests_") or name in plain


def test_dla_has_a_table_of_its_own(tmp_path, capsys, traces):
    serve = ["env", "LAB3_PREDICTOR=noise:1", "vllm", "serve", "m", "--enable-prefix-caching"]
    for (arm, repeat), (bench, steps) in traces.items():
        folder = tmp_path / "runs" / f"{arm}-r{repeat}"
        preemptions = {"num_preemptions": 40 if arm == "default" else 10}
        info = {"task": "dla", "arm": arm, "label": ARMS[arm][0], "repeat": repeat}
        info |= {"serve_cmd": serve, "server_metrics": preemptions}
        write_run(folder, bench, None if arm == "default" else steps, **info)
    code, out, _ = table(tmp_path / "runs", capsys, "--task", "dla")
    assert code == 0
    markdown = (tmp_path / "runs/out/table.md").read_text()
    summary = pd.read_csv(tmp_path / "runs/out/summary.csv").set_index("label")
    row = cells(markdown, "DLA: strategies")["A"]
    assert row[0].startswith(number(summary.e2e_mean_ms["A"]))
    assert row[6] == "10"
    assert row[7] == "0.0%"
    assert cells(markdown, "DLA: strategies")["vLLM default"][7] == "–"
    assert cells(markdown, "Ratio to vLLM default")["A"][6] == "0.25x"
    assert "KV pool of 100 blocks of 16 = 1,584 tokens" in out
    assert "prefix caching on; predictions noise:1." in out

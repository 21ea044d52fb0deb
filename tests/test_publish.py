"""What goes from runs/ to results/: small, complete about its origin, without local paths."""

import json
from pathlib import Path

import pytest

from lab3 import publish
from lab3.provenance import ROOT

TEXTS = (".json", ".csv", ".md")
COMMITTED = [path for path in sorted((ROOT / "results").rglob("*")) if path.suffix in TEXTS]


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "task3-cpu"
    for repeat, rate in ((1, 8), (2, 9)):
        run = folder / f"sjf-r{repeat}"
        run.mkdir(parents=True)
        record = str(folder / "servers" / "sjf.steps.jsonl")
        content = {
            "arm": "sjf",
            "point": {"request_rate": rate},
            "serve_cmd": [
                "vllm",
                "serve",
                str(ROOT / "models" / "tiny"),
                f'{{"record": "{record}"}}',
            ],
            "bench_cmd": ["vllm", "bench", "serve", "--result-dir", str(run)],
        }
        (run / "run.json").write_text(json.dumps(content))
        (run / "bench.json").write_text("{}")
    for name in (
        "table.md",
        "liars.md",
        "summary.csv",
        "runs.csv",
        "fig3a_cdf.png",
        "fig3a_cdf.svg",
    ):
        (folder / name).write_text(name)
    return folder


def test_tables_figures_and_origin_are_kept_raw_files_are_not(runs, tmp_path):
    out = tmp_path / "results"
    assert publish.main([str(runs), str(out)]) == 0
    names = sorted(path.name for path in out.iterdir())
    tables = ["runs.csv", "summary.csv", "table.md"]
    assert names == ["fig3a_cdf.png", "liars.md", "run.json", *tables]


def test_run_json_says_once_what_is_common_and_names_no_local_path(runs, tmp_path):
    publish.publish(runs, tmp_path / "results")
    text = (tmp_path / "results" / "run.json").read_text()
    content = json.loads(text)
    assert content["common"]["arm"] == "sjf"
    assert content["common"]["serve_cmd"][2:] == [
        "./models/tiny",
        '{"record": "RUNS/servers/sjf.steps.jsonl"}',
    ]
    assert content["runs"]["sjf-r2"] == {
        "point": {"request_rate": 9},
        "bench_cmd": ["vllm", "bench", "serve", "--result-dir", "RUNS/sjf-r2"],
    }
    assert str(tmp_path) not in text
    assert str(ROOT) not in text


def test_task1_has_one_run_in_the_folder_itself(tmp_path):
    folder = tmp_path / "task1-cpu"
    folder.mkdir()
    (folder / "run.json").write_text('{"task": "task1"}')
    (folder / "task1.csv").write_text("mode\n")
    publish.publish(folder, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "run.json").read_text()) == {
        "common": {"task": "task1"},
        "runs": {"task1-cpu": {}},
    }


@pytest.mark.parametrize("name", ["gone", "empty"])
def test_nothing_to_keep_is_one_line(tmp_path, capsys, name):
    (tmp_path / "empty").mkdir()
    assert publish.main([str(tmp_path / name), str(tmp_path / "out")]) == 2
    error = f"error: publish: {tmp_path / name} has no table of a finished run\n"
    assert capsys.readouterr().err == error
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.name)
def test_committed_results_name_no_local_path(path):
    text = path.read_text(encoding="utf-8")
    assert [word for word in ("/home/", "/root/", "/tmp/", str(ROOT)) if word in text] == []

"""The report: built from the committed results, complete, up to date, and unable to be wrong."""

import io
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pypdf
import pytest

from lab3.report import build, claims, facts, fonts
from lab3.report.__main__ import main
from lab3.report.results import FIGURES, STRATEGIES, TABLES, ReportError, Results

ROOT = Path(__file__).resolve().parent.parent
SOURCES = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "report").glob("*.typ")}
CHAPTERS = ("实验环境", "Task 1", "Task 2", "Task 3", "总结与思考")
LAB_FIGURES = ("图 A1", "图 A2", "图 3A")
QUESTIONS = 3 + 3 + 2
"""How many questions the lab asks in Tasks 1, 2 and 3."""


def copy(folder: Path) -> Path:
    """The report's text beside a copy of the results that a test may spoil."""
    shutil.copytree(ROOT / "report", folder / "report")
    shutil.copytree(ROOT / "results", folder / "results")
    return folder


def text_of(pdf: bytes) -> str:
    """Text of all pages without white space, which PDF readers place as they like."""
    pages = pypdf.PdfReader(io.BytesIO(pdf)).pages
    return re.sub(r"\s+", "", "".join(page.extract_text() for page in pages))


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> bytes:
    root = copy(tmp_path_factory.mktemp("report"))
    build.write_data(root)
    return build.compiled(root)


def test_the_committed_pdf_is_what_the_results_make(built):
    committed = (ROOT / "report" / "report.pdf").read_bytes()
    assert text_of(committed) == text_of(built), "run: bash report/build.sh"


def test_the_same_results_make_the_same_bytes(built, tmp_path):
    root = copy(tmp_path)
    build.write_data(root)
    assert build.compiled(root) == built


def test_every_chapter_question_and_figure_is_there(built):
    outline = pypdf.PdfReader(io.BytesIO(built)).outline
    chapters = [entry.title for entry in outline if not isinstance(entry, list)]
    assert len(chapters) >= len(CHAPTERS)
    for wanted, title in zip(CHAPTERS, chapters, strict=False):
        assert wanted in title
    text = text_of(built)
    assert [name for name in LAB_FIGURES if name.replace(" ", "") not in text] == []
    questions = "".join(SOURCES[f"{n}-task{n - 1}.typ"] for n in (2, 3, 4)).count("#question[")
    assert questions == QUESTIONS


def test_every_page_of_text_is_in_the_report():
    included = re.findall(r'#?include "([^"]+)"', "".join(SOURCES.values()))
    assert sorted(included) == sorted(SOURCES.keys() - {"report.typ", "template.typ"})


def test_every_figure_is_drawn(built):
    pages = pypdf.PdfReader(io.BytesIO(built)).pages
    drawn = [image.name for page in pages for image in page.images]
    cited = re.findall(r'#fig\("([^"]+)"', "".join(SOURCES.values()))
    assert sorted(cited) == sorted(FIGURES)
    assert len(drawn) == len(FIGURES)


def test_every_claim_is_made_and_every_sentence_claimed():
    made = re.findall(r'#claim\("([^"]+)"\)', "".join(SOURCES.values()))
    assert sorted(set(made)) == sorted(claims.CLAIMS)
    assert all(function.__doc__ for function in claims.CLAIMS.values())


def test_no_measured_number_is_typed_by_hand():
    """A number with a unit of measurement must come from the results; thresholds are excepted."""
    allowed = {"0 ms", "2%", "5%", "10%", "3%", "24 倍", "135M"}
    for name, source in SOURCES.items():
        if name == "template.typ":
            continue
        typed = re.sub(r'"[^"\n]*"|width: \d+%', "", source)
        found = re.findall(r"\d[\d,.]*\s?(?:ms|%|倍|tokens/s|MiB|s\b)", typed)
        assert set(found) - allowed == set(), name


def test_a_missing_result_is_named(tmp_path, capsys):
    root = copy(tmp_path)
    gone = [TABLES[0], FIGURES["A1"]]
    for name in gone:
        (root / "results" / name).unlink()
    assert main(["--root", str(root)]) == 2
    error = capsys.readouterr().err
    assert error == f"error: report: missing in results/: {', '.join(gone)}\n"


def turned_round(root: Path) -> Results:
    """Results in which whatever was better is worse: 1/x for x, in every table."""
    for name in TABLES:
        if not name.endswith(".csv"):
            continue
        rows = pd.read_csv(root / "results" / name)
        for column in rows.select_dtypes("number"):
            if column in ("repeats", "repeat", "seed", "load", "budget", "batch"):
                continue
            rows[column] = 1 / rows[column].astype(float).replace(0, 1e-9)
        for low in [column for column in rows if column.endswith("_min")]:
            high = low.removesuffix("_min") + "_max"
            rows[[low, high]] = rows[[high, low]].to_numpy()
        rows.to_csv(root / "results" / name, index=False)
    return Results(root / "results")


def test_claims_hold_and_fail_when_the_results_say_the_opposite(tmp_path):
    assert claims.broken(Results(ROOT / "results")) == []
    results = turned_round(copy(tmp_path))
    still = [name for name, holds in claims.CLAIMS.items() if holds(results)]
    # What says "no difference" says it the other way round as well.
    assert [name for name in still if not name.endswith("-same")] == []


def test_the_build_names_the_claim_that_no_longer_holds(tmp_path, capsys):
    root = copy(tmp_path)
    turned_round(root)
    assert main(["--root", str(root)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: report: no longer true: ")
    assert error.count("\n") == 1
    assert not (root / "report" / "new.pdf").exists()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('#v("task3-cpu.sjf.beauty")', "no number named task3-cpu.sjf.beauty"),
        ('#claim("sky-is-green")[text]', "no claim named sky-is-green"),
        ('#tbl("gone", [t])', "no table named gone"),
        ("𓀀", "could not be displayed"),
        ('#text(font: "No Such Font")[x]', "unknown font family"),
    ],
)
def test_what_the_text_asks_for_must_exist(built, tmp_path, line, message):
    root = copy(tmp_path)
    build.write_data(root)
    with (root / "report" / "5-thoughts.typ").open("a", encoding="utf-8") as file:
        file.write(f"\n{line}\n")
    with pytest.raises(ReportError, match=message):
        build.compiled(root)


def test_without_a_chinese_font_one_line_says_what_to_install():
    with pytest.raises(ReportError, match=r"^no Chinese font: .*pylopdf-fonts-zh-cn") as caught:
        fonts.find(wheel="no_such_package", use_system=False)
    assert "\n" not in str(caught.value)


def test_the_script_passes_its_options_on(tmp_path):
    root = copy(tmp_path)
    done = subprocess.run(
        [
            "bash",
            str(ROOT / "report" / "build.sh"),
            "--root",
            str(root),
            "--pages",
            str(root / "p"),
        ],
        env=os.environ
        | {"LAB3_SKIP_SETUP": "1", "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(root / "report" / "report.pdf")
    assert len(list((root / "p").glob("page-*.png"))) >= 5


@pytest.mark.parametrize("name", STRATEGIES)
def test_measured_and_simulated_tables_are_marked(name):
    from lab3.report import tables

    made = tables.collect(Results(ROOT / "results"))
    assert made[name]["kind"] == "measured"
    for key, table in made.items():
        if table["kind"] == "both":
            words = " ".join(word for header in table["headers"] for word in header)
            assert "模拟" in words, key
            assert "实测" in words, key
        elif table["source"].startswith("results/sim/"):
            assert table["kind"] == "simulated", key


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_is_judged_once_and_those_without_a_difference_together(name):
    results = Results(ROOT / "results")
    found = facts.sentences(results, name)
    judged = [arm for arms, _ in found for arm in arms]
    assert sorted(judged) == sorted(results.strategies(name).index.drop("default"))
    assert sum("没有超出噪声" in text for _, text in found) <= 1

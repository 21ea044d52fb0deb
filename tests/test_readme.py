"""README.md says what the committed files say, and what it names exists."""

import re
from pathlib import Path

import pytest

from lab3 import readme

PAGES = sorted(readme.ROOT.glob("README*.md"))


def test_tables_are_those_of_the_committed_files():
    assert readme.main(["--check"]) == 0


def test_a_changed_number_is_noticed(tmp_path, monkeypatch, capsys):
    (tmp_path / "table.md").write_text("# Task\n\n| a |\n|---|\n| 1 |\n")
    page = tmp_path / "README.md"
    page.write_text("x\n<!-- from table.md -->\n<!-- end -->\ny\n")
    monkeypatch.setattr(readme, "ROOT", tmp_path)
    assert readme.main(["--check"]) == 1
    assert readme.main([]) == 0
    assert "**Task**" in page.read_text()
    assert "| 1 |" in page.read_text()
    assert readme.main(["--check"]) == 0
    page.write_text(page.read_text().replace("| 1 |", "| 2 |"))
    assert readme.main(["--check"]) == 1
    assert "python -m lab3.readme" in capsys.readouterr().out


def test_a_missing_source_is_one_clear_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "README.md").write_text("<!-- from gone.md -->\n<!-- end -->\n")
    monkeypatch.setattr(readme, "ROOT", tmp_path)
    assert readme.main([]) == 1
    assert "gone.md, which is missing" in capsys.readouterr().err


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_linked_file_exists(page: Path):
    targets = re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    local = [target for target in targets if "://" not in target]
    assert local
    assert [target for target in local if not (page.parent / target).exists()] == []


def test_a_summary_is_the_first_table_and_where_it_comes_from():
    first, second = "**T**\n\n| a |\n|---|\n| 1 |", "**U**\n\n| b |\n|---|\n| 2 |"
    text = f"{first}\n\n{second}\n\n- said\n- Measured; CPU.\n"
    assert readme.summary(text) == f"{first}\n\n- Measured; CPU."

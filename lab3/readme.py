"""Puts measured tables into README.md and docs/: python -m lab3.readme [--check]

A block looks like this, and everything between its two lines comes from the named file, all of it
or ("summary of") its first table and the line that says where the numbers come from:

    <!-- summary of results/task3-cpu/table.md -->
    ...
    <!-- end -->

``--check`` writes nothing and exits 1 when a block differs from its file.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_BLOCK = re.compile(
    r"(<!-- (?P<part>from|summary of) (?P<source>\S+) -->\n).*?(<!-- end -->)", re.DOTALL
)


def pages(root: Path) -> list[Path]:
    """Every page that may cite files of results."""
    return sorted([*root.glob("README*.md"), *root.glob("docs/*.md")])


def filled(text: str, root: Path) -> str:
    """``text`` with every block replaced by its file below ``root``.

    Raises FileNotFoundError when a named file is missing.
    """

    def fill(block: re.Match[str]) -> str:
        content = (root / block["source"]).read_text(encoding="utf-8").strip()
        if block["part"] == "summary of":
            content = summary(content)
        # Headings of a table file would break the README's own outline.
        content = re.sub(r"^#+ (.*)$", r"**\1**", content, flags=re.MULTILINE)
        return f"{block[1]}\n{content}\n\n{block[4]}"

    return _BLOCK.sub(fill, text)


def summary(content: str) -> str:
    """The first table of a table.md, with its title, and the line of provenance."""
    table = re.search(r"^(?:\*\*.*\*\*\n\n)?(?:\|.*\n?)+", content, re.MULTILINE)
    origin = re.search(r"^- (?:Measured|SIMULATED).*$", content, re.MULTILINE)
    return "\n\n".join(found[0].strip() for found in (table, origin) if found)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0, or 1 when ``--check`` finds a difference or a file is missing."""
    parser = argparse.ArgumentParser(prog="python -m lab3.readme", description=__doc__)
    parser.add_argument("--check", action="store_true", help="only compare")
    check = parser.parse_args(argv).check
    for page in pages(ROOT):
        text = page.read_text(encoding="utf-8")
        try:
            wanted = filled(text, ROOT)
        except FileNotFoundError as error:
            print(f"error: {page.name} cites {error.filename}, which is missing", file=sys.stderr)
            return 1
        if check and text != wanted:
            print(f"error: {page.name} is not up to date: run python -m lab3.readme")
            return 1
        if not check:
            page.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

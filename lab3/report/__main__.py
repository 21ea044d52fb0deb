"""Builds report/report.pdf from the committed results: python -m lab3.report

Exit code 2 with one line when a result is missing, a claim of the text no longer holds, or typst
can't make it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from lab3.report.results import ROOT, ReportError


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m lab3.report", description=__doc__)
    parser.add_argument("--root", type=Path, default=ROOT, help="holds report/ and results/")
    parser.add_argument("--out", type=Path, help="default: report/report.pdf there")
    parser.add_argument("--pages", type=Path, metavar="DIR", help="a PNG of each page as well")
    args = parser.parse_args(argv)
    out = args.out or args.root / "report" / "report.pdf"
    try:
        from lab3.report import build

        build.write_data(args.root)
        out.write_bytes(build.compiled(args.root))
        if args.pages:
            args.pages.mkdir(parents=True, exist_ok=True)
            for number, page in enumerate(build.compiled(args.root, "png"), 1):
                (args.pages / f"page-{number:02}.png").write_bytes(page)
    except ReportError as error:
        print(f"error: report: {error}", file=sys.stderr)
        return 2
    print(out)
    return 0


if __name__ == "__main__":
    sys.exit(main())

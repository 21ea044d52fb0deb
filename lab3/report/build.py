"""Builds the report: numbers from result files into a JSON file, then typst.

A claim that no longer holds, a name that no file has, a missing figure, a glyph that no font has
and any warning of typst end it with one line.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import typst

from lab3.report import claims, facts, fonts, tables
from lab3.report.labels import label
from lab3.report.results import FIGURES, MEASURED, STRATEGIES, ReportError, Results

DATA = "build/report.json"
"""Read by typst; ``build/`` is ignored by git."""


def data(results: Results) -> dict[str, Any]:
    """Facts, tables, figures and claims; raises ReportError naming each claim that is broken."""
    wrong = claims.broken(results)
    if wrong:
        raise ReportError("no longer true: " + "; ".join(wrong))
    return {
        "facts": facts.collect(results),
        "tables": tables.collect(results),
        "sentences": {
            name: [
                ["、".join(label(name, arm) for arm in arms), text]
                for arms, text in facts.sentences(results, name)
            ]
            for name in STRATEGIES
        },
        "figures": {name: f"/results/{path}" for name, path in FIGURES.items()},
        "claims": sorted(claims.CLAIMS),
        "day": [int(part) for part in last_day(results).split("-")],
    }


def last_day(results: Results) -> str:
    """The last day of measurement, which dates the PDF: the same results give the same bytes."""
    days = [re.findall(r"\d{4}-\d\d-\d\d", results.provenance(name)[-1]) for name in MEASURED]
    return max(day for found in days for day in found)


def write_data(root: Path) -> None:
    """Everything that the text may cite, from ``root``/results, into ``root``/build."""
    content = data(Results(root / "results"))
    path = root / DATA
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1), encoding="utf-8")


def compiled(root: Path, kind: str = "pdf") -> bytes | list[bytes]:
    """The report in ``root`` as PDF, or as one PNG a page; raises ReportError with what typst says.

    PDF/A-2u: typst then refuses a character that the font lacks instead of drawing a box.
    """
    found = fonts.find()
    try:
        made, warnings = typst.compile_with_warnings(
            str(root / "report" / "report.typ"),
            root=str(root),
            font_paths=list(found.folders),
            ignore_system_fonts=not found.system,
            format=kind,
            ppi=110 if kind == "png" else None,
            sys_inputs={"serif": found.serif, "sans": found.sans},
            pdf_standards=["a-2u"] if kind == "pdf" else [],
        )
    except typst.TypstError as error:
        raise ReportError(f"typst: {error.message}\n{error.diagnostic}") from None
    if warnings:
        raise ReportError("typst warns: " + "; ".join(str(w.message) for w in warnings))
    return made

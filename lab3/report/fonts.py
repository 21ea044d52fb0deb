"""Where the report's Chinese fonts are: in the wheel that the lock names, or in the system."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

import typst

from lab3.report.results import ReportError

WHEEL = "pylopdf_fonts_zh_cn"
SERIF = ("Noto Serif SC", "Noto Serif CJK SC", "Source Han Serif SC", "Songti SC", "SimSun")
SANS = ("Noto Sans SC", "Noto Sans CJK SC", "Source Han Sans SC", "PingFang SC", "SimHei")


@dataclass(frozen=True)
class FontSet:
    """Families of text and headings, and the folders that typst searches for them."""

    serif: str
    sans: str
    folders: tuple[str, ...]
    system: bool


def find(wheel: str = WHEEL, use_system: bool = True) -> FontSet:
    """The wheel's fonts, else the system's; raises ReportError with one line without either."""
    spec = importlib.util.find_spec(wheel)
    if spec and spec.origin:
        return FontSet(SERIF[0], SANS[0], (str(Path(spec.origin).parent),), system=False)
    families = typst.Fonts(include_system_fonts=use_system, font_paths=[]).families()
    serif, sans = (
        next((name for name in names if name in families), None) for names in (SERIF, SANS)
    )
    if not (serif or sans):
        raise ReportError(
            "no Chinese font: run 'bash setup.sh', 'pip install pylopdf-fonts-zh-cn', or install "
            "Noto CJK (Debian, Ubuntu: apt install fonts-noto-cjk)"
        )
    return FontSet(serif or sans or "", sans or serif or "", (), system=True)

"""What the report's text claims, as functions of the result files.

``#claim("name")[...]`` in report/*.typ prints its text only while the function is true; otherwise
the build ends and names the claim. A sentence that only quotes numbers needs none: its numbers and
words ("0.73 倍，变好") come from the files.
"""

from __future__ import annotations

from collections.abc import Callable

from lab3.report.phrases import direction
from lab3.report.results import Results

Claim = Callable[[Results], bool]
CLAIMS: dict[str, Claim] = {}


def claim(name: str) -> Callable[[Claim], Claim]:
    """Registers a claim under the name that the text uses."""

    def register(function: Claim) -> Claim:
        CLAIMS[name] = function
        return function

    return register


def broken(results: Results) -> list[str]:
    """The claims that do not hold: "name (what it says)"."""
    return [
        f"{name}: {function.__doc__}" for name, function in CLAIMS.items() if not function(results)
    ]


def against_default(results: Results, folder: str, arm: str, metric: str) -> str:
    """better, worse, noise or unknown."""
    own, base = (results.spread(folder, one, metric) for one in (arm, "default"))
    return direction(own, base, metric)

"""The committed result files that the report is made of, by the names it uses for them."""

from __future__ import annotations

import json
import re
from functools import cached_property
from pathlib import Path

import pandas as pd

from lab3.summary import Spread, spread

ROOT = Path(__file__).resolve().parent.parent.parent
TASK1, TASK1_REAL = "task1-cpu", "task1-smollm2"
TASK2, TASK3, CANDIDATES = "task2-cpu", "task3-cpu", "task3-candidates-cpu"
OVERLOAD, DLA = "task3-varied-cpu", "dla-cpu"
PREDICTIONS, CACHING, TRACE = "dla-predictions-cpu", "dla-caching-cpu", "dla-trace-cpu"
LIARS = "dla-liars-cpu"
DLA_MORE = (PREDICTIONS, CACHING, TRACE, LIARS)
STRATEGIES = (TASK3, CANDIDATES, OVERLOAD, DLA, *DLA_MORE)
MEASURED = (TASK1, TASK1_REAL, TASK2, *STRATEGIES)
TABLES = (
    *(f"{name}/{file}" for name in (TASK1, TASK1_REAL) for file in ("task1.csv", "table.md")),
    *(
        f"{name}/{file}"
        for name in (TASK2, *STRATEGIES)
        for file in ("summary.csv", "runs.csv", "table.md")
    ),
    "sim/validation_gpu.csv",
    "sim/validation_gpu_assumptions.csv",
    "sim/validation_live.csv",
    f"{DLA}/simulated.csv",
    f"{LIARS}/liars.csv",
    "sim/dla.csv",
    "sim/tasks.csv",
)
SIMULATED_KEYS = ("engine", "lengths", "point", "load", "budget", "kv", "caching", "predictions")
FIGURES = {
    "task1": f"{TASK1_REAL}/task1.png",
    "A1": f"{TASK2}/a1_latency.png",
    "A2": f"{TASK2}/a2_throughput.png",
    "3A": f"{TASK3}/fig3a_cdf.png",
    "3A-tail": f"{TASK3}/fig3a_tail.png",
    "3B": f"{TASK3}/fig3b_steps.png",
    "3A-candidates": f"{CANDIDATES}/fig3a_cdf.png",
    "3A-overload": f"{OVERLOAD}/fig3a_cdf.png",
    "dla": f"{DLA}/dla_jct.png",
    "dla-trace": f"{TRACE}/dla_jct.png",
    "sim-dla": "sim/dla.png",
    "sim-tasks": "sim/tasks_fixed.png",
    "sim-map": "sim/map.png",
}


class ReportError(Exception):
    """One line: why the report can't be built, and what to do."""


class Results:
    """Reads ``root``, a results folder; raises ReportError with one line naming what is missing."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._strategies: dict[str, pd.DataFrame] = {}
        missing = [name for name in (*TABLES, *FIGURES.values()) if not (root / name).is_file()]
        if missing:
            raise ReportError(f"missing in {root.name}/: {', '.join(missing)}")

    def task1(self, name: str) -> pd.DataFrame:
        """Rows of Task 1, by (pass, plan)."""
        rows = pd.read_csv(self.root / name / "task1.csv")
        return rows[rows.ok].set_index(["mode", "plan"])

    def strategies(self, name: str) -> pd.DataFrame:
        """Rows of a comparison, by arm; one load an arm."""
        if name not in self._strategies:
            rows = pd.read_csv(self.root / name / "summary.csv")
            if rows.arm.duplicated().any():
                raise ReportError(f"{name}/summary.csv has an arm at several loads")
            self._strategies[name] = rows.set_index("arm", drop=False)
        return self._strategies[name]

    @cached_property
    def sweep(self) -> pd.DataFrame:
        """Rows of Task 2, by X."""
        from lab3.sweep import sweep_values

        rows = pd.read_csv(self.root / TASK2 / "summary.csv")
        return sweep_values(rows).set_index("x", drop=False)

    @cached_property
    def dla_simulated(self) -> pd.DataFrame:
        """The live DLA comparison beside its simulation, by arm."""
        return pd.read_csv(self.root / DLA / "simulated.csv").set_index("arm", drop=False)

    @cached_property
    def liars(self) -> pd.DataFrame:
        """JCT of honest and lying requests on the live server, a row an arm and round."""
        return pd.read_csv(self.root / LIARS / "liars.csv")

    @cached_property
    def dla_experiment(self) -> pd.DataFrame:
        """The simulated DLA experiment, the default's rows under every kind of prediction."""
        from experiments.sim_dla import with_defaults

        return with_defaults(self.simulated("dla"))

    @cached_property
    def validation_live(self) -> pd.DataFrame:
        """Measured and simulated values of the live validation, by (metric, arm)."""
        rows = self.simulated("validation_live")
        return rows.groupby(["metric", "arm"], sort=False)[["measured", "simulated"]].mean()

    def spread(self, name: str, arm: str, metric: str) -> Spread:
        """A metric of an arm over its repeats; raises ReportError for an unknown one."""
        rows = self.strategies(name)
        if arm not in rows.index or metric not in rows:
            raise ReportError(f"{name}/summary.csv has no {metric} of {arm}")
        return spread(rows.loc[arm], metric)

    def simulated(self, name: str) -> pd.DataFrame:
        """Rows of one of the simulator's experiments; what tells rows apart stays text."""
        keys = dict.fromkeys(SIMULATED_KEYS, str)
        return pd.read_csv(self.root / "sim" / f"{name}.csv", dtype=keys)

    def provenance(self, name: str) -> list[str]:
        """Machine, version, model, profile, load, commit and day of a result, from its table.md."""
        text = (self.root / name / "table.md").read_text(encoding="utf-8")
        found = re.search(r"^- (Measured|SIMULATED)\b(.*)$", text, re.MULTILINE)
        if not found:
            raise ReportError(f"{name}/table.md does not say where its numbers come from")
        return [part.strip() for part in found[2].strip("; .").split("; ")]

    def identical_texts(self, name: str) -> tuple[int, int]:
        """Of how many prompts (second) vLLM wrote the very tokens of HF serial (first)."""
        text = (self.root / name / "table.md").read_text(encoding="utf-8")
        found = re.search(
            r"Greedy tokens, vLLM offline against HF serial: (\d+) of (\d+) identical", text
        )
        if not found:
            raise ReportError(f"{name}/table.md does not compare the greedy tokens")
        return int(found[1]), int(found[2])


def point(row: pd.Series) -> dict[str, float]:
    """The server and load values of a summary row."""
    return json.loads(row.point)

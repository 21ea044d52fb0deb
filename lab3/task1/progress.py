"""Progress of a plan, from its own process to the terminal of the script that started it.

A plan's process writes its output to a log file. Its bars draw nothing: they leave marked lines
there, and the script, which reads the log while it waits, draws the bar with the time left.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from tqdm import tqdm

MARK = "@progress "
SECONDS_BETWEEN_LINES = 15.0


class ReportingBar(tqdm):
    """A tqdm bar that writes its state as a marked line instead of drawing itself."""

    def __init__(self, total: int, desc: str, unit: str, **_: Any) -> None:
        self._nowhere = open(os.devnull, "w")  # noqa: SIM115 - as long as the bar
        super().__init__(total=total, desc=desc, unit=unit, file=self._nowhere, mininterval=0.5)

    def display(self, *_: Any, **__: Any) -> None:
        """Called by tqdm whenever it would draw."""
        state = {"desc": self.desc, "unit": self.unit, "done": self.n, "total": self.total}
        print(MARK + json.dumps(state), flush=True)


class LineBar(tqdm):
    """A bar for a file or a pipe: a whole line now and then, nothing drawn over."""

    def __init__(self, total: int, desc: str, unit: str) -> None:
        self._nowhere = open(os.devnull, "w")  # noqa: SIM115 - as long as the bar
        super().__init__(
            total=total,
            desc=desc,
            unit=unit,
            file=self._nowhere,
            leave=False,
            mininterval=SECONDS_BETWEEN_LINES,
        )

    def display(self, *_: Any, **__: Any) -> None:
        """Called by tqdm whenever it would draw."""
        if self.n:
            state = self.format_dict | {"ncols": 90}
            print(tqdm.format_meter(**state), file=sys.stderr, flush=True)


class ProgressView:
    """Reads a growing log and draws the bars whose lines it finds there."""

    def __init__(self, log: Path) -> None:
        self._log, self._position, self._half = log, 0, ""
        self._bar: tqdm | None = None

    def update(self) -> None:
        """Draw what was written since the last call."""
        with self._log.open(errors="replace") as log:
            log.seek(self._position)
            text = self._half + log.read()
            self._position = log.tell()
        *lines, self._half = text.split("\n")
        for line in lines:
            if line.startswith(MARK):
                self._draw(json.loads(line.removeprefix(MARK)))

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _draw(self, state: dict[str, Any]) -> None:
        if self._bar is None or self._bar.desc.removesuffix(": ") != state["desc"]:
            self.close()
            about = {key: state[key] for key in ("total", "desc", "unit")}
            on_terminal = sys.stderr.isatty()
            self._bar = tqdm(**about, dynamic_ncols=True) if on_terminal else LineBar(**about)
        self._bar.update(state["done"] - self._bar.n)

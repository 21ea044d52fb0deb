"""The KV cache over time, in a JSON file that another process reads; no vLLM import.

The file is replaced in one move, so whoever reads it sees a whole one. Its keys:

``peak_tokens``     largest sum of ``num_computed_tokens`` over the running requests of a step
``peak_blocks``     largest number of KV blocks that requests really held in a step
``block_size_tokens``, ``pool_blocks``   tokens of a block; blocks that requests can use
``steps``           steps that scheduled a token
``t_s``, ``tokens``, ``blocks``, ``running``   one value for each of the steps: when it was
                    scheduled (``time.monotonic()`` seconds), tokens and blocks held, requests
"""

import json
import os
import time
from pathlib import Path
from typing import Any

# Beyond this many steps only every second one is kept, then every fourth, and so on.
_MAX_POINTS = 20_000


class KVPeakFile:
    """Collects one point a step; ``write`` puts all that is known into the file."""

    def __init__(self, path: str, block_size_tokens: int, pool_blocks: int) -> None:
        """Writes an empty record at once; raises OSError when ``path`` can't be written."""
        self._path = Path(path)
        self._summary = {
            "peak_tokens": 0,
            "peak_blocks": 0,
            "block_size_tokens": block_size_tokens,
            "pool_blocks": pool_blocks,
            "steps": 0,
        }
        self._points: list[tuple[float, int, int, int]] = []
        self._stride = 1
        self.write()

    def add(self, tokens: int, blocks: int, running: int) -> None:
        """One step: tokens computed and blocks held by ``running`` requests after it."""
        summary = self._summary
        summary["peak_tokens"] = max(summary["peak_tokens"], tokens)
        summary["peak_blocks"] = max(summary["peak_blocks"], blocks)
        if summary["steps"] % self._stride == 0:
            self._points.append((round(time.monotonic(), 6), tokens, blocks, running))
            if len(self._points) >= _MAX_POINTS:
                self._points = self._points[::2]
                self._stride *= 2
        summary["steps"] += 1

    def write(self) -> None:
        """Replace the file; raises OSError when that fails."""
        names = ("t_s", "tokens", "blocks", "running")
        columns = zip(*self._points, strict=True) if self._points else ((),) * len(names)
        record = self._summary | dict(zip(names, map(list, columns), strict=True))
        part = self._path.with_name(self._path.name + ".part")
        part.write_text(json.dumps(record, separators=(",", ":")))
        os.replace(part, self._path)


def read_kv_peak(path: str | Path) -> dict[str, Any]:
    """The record in ``path``; raises OSError if there is none, ValueError if it is not one."""
    record = json.loads(Path(path).read_text())
    if not isinstance(record, dict) or "peak_tokens" not in record:
        raise ValueError(f"{path} is no KV peak file: run with my_scheduler.KVPeakScheduler")
    return record

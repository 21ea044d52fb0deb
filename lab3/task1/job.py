"""What a plan's process is told, and what it hands back: two JSON files a plan.

Result file ``<plan>.json``::

    {"schema": 1, "plan": "hf-static", "status": "ok" | "failed", "reason": "",
     "setup": "1f0c...",            fingerprint of model, dtype, prompts, lengths
     "load_s": 4.1, "warmup_s": 0.3, "search_s": 0.0, "batch": 64, "tries": [[64, true]],
     "kv_pool_tokens": null, "kv_block_size": null,           vLLM only
     "passes": [{"mode": "fixed" | "eos", "wall_s": 9.1, "outputs": [[17, 4, ...], ...],
                 "finish_s": [9.1, ...],                      since all were handed in, per prompt
                 "batches": [{"rows": [0, 1], "width": 512, "steps": 128}],
                 "peak_memory_bytes": 0,
                 "kv": {"peak_tokens": 0, "peak_blocks": 0,
                         "series": [[seconds, tokens, blocks, running], ...]}}]}

Rows of ``outputs`` and ``finish_s`` are in the order of the prompts, whatever order a plan ran.
"""

import hashlib
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

SCHEMA = 1
PLANS = {
    "hf-serial": "HF serial",
    "hf-static": "HF static batch",
    "hf-static-sorted": "HF static, sorted",
    "vllm": "vLLM offline",
}
FIXED, EOS = "fixed", "eos"


@dataclass(frozen=True)
class Job:
    """One plan's order. ``modes``: passes to measure, "fixed" (exactly ``max_new_tokens`` for
    every prompt) or "eos" (a row ends with its first end-of-sequence token)."""

    plan: str
    model: str
    dtype: str
    device: str
    prompts: list[list[int]]
    max_new_tokens: int
    eos_token_ids: list[int]
    pad_token_id: int
    modes: list[str]
    max_batch: int
    sorted_batch: int
    memory_limit_gib: float = 0.0
    engine_args: dict[str, Any] = field(default_factory=dict)

    def setup(self) -> str:
        """Fingerprint of what must be equal for two plans' results to be compared."""
        same = {
            key: value
            for key, value in asdict(self).items()
            if key in ("model", "dtype", "device", "prompts", "max_new_tokens", "eos_token_ids")
        }
        return hashlib.sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()[:16]

    def write(self, path: Path) -> None:
        write_json(path, asdict(self))

    @classmethod
    def read(cls, path: Path) -> "Job":
        return cls(**json.loads(path.read_text()))


def write_json(path: Path, content: Any) -> None:
    """Write by rename: a reader sees the whole file or none."""
    half = path.with_name(path.name + ".half")
    half.write_text(json.dumps(content, separators=(",", ":")))
    os.replace(half, path)

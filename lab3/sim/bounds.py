"""What no scheduler can beat on this workload and cost model, and how close a run came.

The device's arithmetic and bytes only: no host overhead, no noise. So a fraction of 1 is out of
reach, and the gap to it is what scheduling, queueing and overhead cost together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lab3.sim.cost_model import Roofline
from lab3.sim.workload import Workload


@dataclass(frozen=True)
class Bounds:
    """Lower bounds in seconds.

    ``compute_s``: all operations at peak. ``kv_s``: what the requests' KV occupies, token by token
    while each runs as fast as it can alone, over the pool. ``last_s``: from the first arrival to
    the end of the last request if it ran alone. ``makespan_s``: the largest of the three.
    ``ttft_s``, ``e2e_s``: each request alone on an idle engine, arrays of one value a request.
    """

    compute_s: float
    kv_s: float
    last_s: float
    ttft_s: np.ndarray
    e2e_s: np.ndarray

    @property
    def makespan_s(self) -> float:
        return max(self.compute_s, self.kv_s, self.last_s)


def lower_bounds(workload: Workload, cost: Roofline, kv_blocks: int, block_size: int) -> Bounds:
    """Bounds of ``workload`` on a device with ``kv_blocks`` blocks (one of them vLLM's own).

    Prompts are taken as computed once and in one piece; prefixes that requests share are left out
    of compute and KV, since a cache may save both.
    """
    flops_per_s, bytes_per_s, model = cost.flops_per_s, cost.bytes_per_s, cost.model
    shared = workload.shared_prefix_tokens
    prompt = np.array(workload.input_tokens, dtype=float)
    new = np.maximum(prompt - shared, 1.0)
    output = np.array(workload.output_tokens, dtype=float)
    later = output - 1

    prompt_pairs = (prompt * (prompt + 1) - (prompt - new) * (prompt - new + 1)) / 2
    decode_pairs = later * (prompt + (later + 1) / 2)
    prefill_flops = 2 * (model.layer_params * new + model.head_params)
    prefill_flops = prefill_flops + prompt_pairs * model.attention_flops_per_pair
    decode_flops = 2 * later * (model.layer_params + model.head_params)
    decode_flops = decode_flops + decode_pairs * model.attention_flops_per_pair

    weights_s = model.weight_bytes / bytes_per_s
    kv_byte_s = model.kv_bytes_per_token / bytes_per_s
    ttft_s = np.maximum(prefill_flops / flops_per_s, weights_s)
    decode_s = later * weights_s + decode_pairs * kv_byte_s
    held_s = (prompt - shared + later / 2).clip(min=0) * decode_s + new / 2 * ttft_s
    pool_tokens = (kv_blocks - 1) * block_size
    arrivals_s = np.array(workload.arrival_s)
    e2e_s = ttft_s + decode_s
    return Bounds(
        compute_s=float((prefill_flops + decode_flops).sum() / flops_per_s),
        kv_s=float(held_s.sum() / pool_tokens),
        last_s=float((arrivals_s + e2e_s).max() - arrivals_s.min()),
        ttft_s=ttft_s,
        e2e_s=e2e_s,
    )


def fractions(bounds: Bounds, ttft_s: np.ndarray, e2e_s: np.ndarray, makespan_s: float) -> dict:
    """Bound over achieved, 0..1, of makespan and of mean TTFT and E2E."""
    return {
        "makespan_bound_s": bounds.makespan_s,
        "makespan_bound_fraction": bounds.makespan_s / makespan_s,
        "ttft_bound_fraction": float(bounds.ttft_s.mean() / np.mean(ttft_s)),
        "e2e_bound_fraction": float(bounds.e2e_s.mean() / np.mean(e2e_s)),
    }

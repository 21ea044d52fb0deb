"""Prepares a trace for vLLM's client: python -m lab3.trace TRACE --out FILE.jsonl ...

    python -m lab3.trace conversations.csv --out t.jsonl --longest 512 --num-prompts 150 --rate 8
    vllm bench serve --dataset-name timed_trace --dataset-path t.jsonl ... (dla.sh says all options)

TRACE is any file that lab3/sim/traces.py reads. Requests longer than the model are clipped; the
arrivals keep their pattern and are sped up or slowed down to the rate ("own" keeps them as they
are, "inf" sends everything at once). The simulator reads the same file (Job.trace). Exit code 2
with one clear line for a trace that cannot be used.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from lab3.sim.traces import read_trace
from lab3.sim.workload import Workload, fit_lengths, redraw_arrivals, scale_rate


def prepared(trace: Path, num_prompts: int, longest: int, rate: str, seed: int) -> Workload:
    """The first requests of ``trace`` as they are to be sent; raises ValueError in one line."""
    found = fit_lengths(read_trace(trace, num_prompts), longest, "clip")
    if rate == "own":
        return found
    wanted = float(rate)
    if math.isinf(wanted):
        return found.with_arrivals([0.0] * len(found))
    if math.isinf(found.offered_rate):
        return redraw_arrivals(found, wanted, seed=seed)
    return scale_rate(found, wanted / found.offered_rate)


def write(workload: Workload, path: Path) -> None:
    """One JSON line a request. Each has a hash id of its own, so no two prompts are alike."""
    rows = zip(workload.arrival_s, workload.input_tokens, workload.output_tokens, strict=True)
    lines = [
        json.dumps(
            {
                "arrival_s": round(arrival_s, 6),
                "input_tokens": prompt,
                "output_tokens": output,
                "hash_ids": [index],
            }
        )
        for index, (arrival_s, prompt, output) in enumerate(rows)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; prints the number of requests, says on stderr what was done to them."""
    parser = argparse.ArgumentParser(prog="lab3.trace", description=__doc__.splitlines()[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--num-prompts", type=int, required=True, help="at most so many")
    parser.add_argument("--longest", type=int, required=True, help="tokens, prompt and output")
    parser.add_argument("--rate", default="own", help="requests/s, inf or own")
    parser.add_argument("--seed", type=int, default=0, help="for a trace without times")
    args = parser.parse_args(argv)
    try:
        made = prepared(args.trace, args.num_prompts, args.longest, args.rate, args.seed)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    write(made, args.out)
    print("; ".join([made.name, *made.notes]), file=sys.stderr)
    print(len(made))
    return 0


if __name__ == "__main__":
    sys.exit(main())

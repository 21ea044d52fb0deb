"""Turns a run with all requests at once into a request rate: python -m lab3.capacity RUN SHARE

Prints SHARE x the requests per second that the run completed, or with --steady x the rate between
the first and the last fifth of its answers: filling and draining the engine makes it look slower
than it is under lasting load. A fixed rate would overload one machine and bore the next; a share of
its capacity puts any machine into the same regime.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lab3.run_folder import BENCH_FILE


def rate(requests_per_s: float, share: float) -> float:
    """``share`` of the capacity in requests/s, to two digits: the rest would be noise."""
    return float(f"{share * requests_per_s:.2g}")


def steady_rate(bench: Mapping[str, Any]) -> float:
    """Answers per second between the first and the last fifth of them, of a bench file."""
    rows = zip(bench["start_times"], bench["ttfts"], bench["itls"], bench["errors"], strict=True)
    ends_s = sorted(at + ttft + sum(gaps) for at, ttft, gaps, error in rows if ttft and not error)
    first, last = len(ends_s) // 5, 4 * len(ends_s) // 5
    if last <= first or ends_s[last] <= ends_s[first]:
        raise ValueError(f"{len(ends_s)} answers are too few for a steady rate")
    return (last - first) / (ends_s[last] - ends_s[first])


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0, or 2 with one clear line on stderr."""
    words = sys.argv[1:] if argv is None else list(argv)
    steady = "--steady" in words
    try:
        folder, share = (word for word in words if word != "--steady")
        if not 0 < float(share) <= 10:
            raise ValueError(f"the share must be above 0 and at most 10, not {share}")
        bench = json.loads((Path(folder) / BENCH_FILE).read_text(encoding="utf-8"))
        requests_per_s = steady_rate(bench) if steady else float(bench["request_throughput"])
        if requests_per_s <= 0:
            raise ValueError(f"no request of {folder} succeeded")
    except (OSError, KeyError, ValueError) as error:
        print(f"error: cannot tell the capacity: {error}", file=sys.stderr)
        return 2
    print(f"{rate(requests_per_s, float(share)):g}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

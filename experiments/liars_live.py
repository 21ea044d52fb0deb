"""Who pays for lies on a live server: python -m experiments.liars_live RUNS --out OUT

RUNS is a folder of `LIARS=0.2 bash dla.sh`: in each of its runs a second client claimed an output
of 1 token for every request (liars.json beside bench.json). Prints the mean and P99 JCT of honest
and lying requests under each policy, as a ratio to what they had under vLLM's default in the same
round, and writes it into --out (liars.csv, liars.md). Warm-up requests of either client are left
out. Exit code 2 when RUNS has no default run with liars, or nothing to compare it with.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.report import HONEST_AND_LIARS, lies_table, write
from lab3.bench_file import ResultError, read_bench, requests_frame
from lab3.captions import provenance_line
from lab3.metrics import percentile
from lab3.results import Run, load_runs
from lab3.text_table import to_text

LIARS_FILE = "liars.json"
BASELINE = "default"


def jct_of(run: Run) -> dict[str, Any]:
    """One run as a row of liars.csv: arm, label, seed (the round), and JCT of either client.

    Raises ResultError when the second client left no usable result.
    """
    path = run.info.folder / LIARS_FILE
    if not path.exists():
        raise ResultError(f"{run.info.folder.name} has no {LIARS_FILE}: run LIARS=0.2 bash dla.sh")
    lying, _ = requests_frame(read_bench(path)[-1], run.info.timeout_s)
    row: dict[str, Any] = {
        "arm": run.info.arm,
        "label": run.info.label.rpartition(",")[0],
        "seed": run.info.repeat,
    }
    for group, requests in zip(HONEST_AND_LIARS, (run.requests, lying), strict=True):
        jct_ms = requests.e2e_ms[requests.ok & requests.in_window].to_numpy()
        if not len(jct_ms):
            raise ResultError(f"{run.info.folder.name}: no request of the {group} client succeeded")
        row[f"{group}_requests"] = len(jct_ms)
        row[f"{group}_mean_ms"] = float(jct_ms.mean())
        row[f"{group}_p99_ms"] = percentile(jct_ms, 99.0)
    return row


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs_dir", type=Path, metavar="RUNS")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(argv)
    try:
        runs = [run for run in load_runs(args.runs_dir, "dla")[0] if run.valid]
        rows = pd.DataFrame([jct_of(run) for run in runs])
        if rows.empty or not (rows.arm == BASELINE).any() or (rows.arm == BASELINE).all():
            raise ResultError(f"{args.runs_dir} needs a default run and another arm to compare")
    except ResultError as error:
        print(f"experiments.liars_live: {error}", file=sys.stderr)
        return 2
    args.out.mkdir(parents=True, exist_ok=True)
    rows.to_csv(args.out / "liars.csv", index=False, float_format="%.6g")
    table = lies_table(rows)
    honest, lying = rows.honest_requests.median(), rows.liars_requests.median()
    notes = [
        f"{provenance_line([run.info for run in runs])}.",
        f"In the window of a run {honest:.0f} honest and {lying:.0f} lying requests; mean and "
        f"range of {rows.seed.nunique()} rounds, each arm against the default's run of its round.",
    ]
    write(args.out / "liars.md", [table], notes)
    print(to_text(table), *notes, sep="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

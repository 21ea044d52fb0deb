"""Fit the simulator's step-time model on live runs: python -m lab3.calibrate RUN... --out cost.json

    python -m lab3.calibrate runs/task3-cpu/passthrough-r1 --out cost.json
    python -m lab3.simulate --cost-file cost.json --kv-blocks 4096 --out runs/sim/default-r1 ...

RUN is a run folder with a step record (any scheduler of my_scheduler; vLLM's own writes none). The
fit is the non-negative least squares of relative errors over the busy steps of the window; what it
does not explain is kept as quantiles of recorded over fitted time, which a simulation draws from.
Predict other runs with it, never the ones it was fitted on.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from lab3.bench_file import ResultError
from lab3.results import Run, load_run
from lab3.sim.cost_model import FITTED_FEATURES, FittedCost, save_cost_model

IDLE_S = 0.02
"""A pause this long between a step's end and the next call means that there was nothing to do."""

BASIC = ("prefill_tokens", "decode_requests")
WORTH = 0.05
"""Another feature must lower the squared error by so much to be used."""

NUM_QUANTILES = 201
MIN_STEPS = 50


def busy_steps(run: Run) -> pd.DataFrame:
    """The run's steps with ``period_us`` and the features of the cost model.

    A step's period starts where the step before it ended, unless the engine was idle in between:
    what the engine does between steps costs time as well.
    """
    steps = run.steps
    if steps is None:
        raise ResultError(
            f"{run.info.folder.name} has no step record: calibrate on an arm of my_scheduler"
        )
    block_size = (run.info.raw.get("kv_cache") or {}).get("block_size")
    if not block_size:
        raise ResultError(f"{run.info.folder.name} does not say its KV block size")
    before_s = steps.done_s.shift(fill_value=-np.inf)
    start_s = np.where(steps.t_s - before_s < IDLE_S, before_s, steps.t_s)
    made = steps[["prefill_tokens", "prefill_requests", "decode_requests"]].copy()
    made["kv_tokens"] = steps.kv_blocks * block_size
    # The record has no positions: a prompt is taken to be computed in this step, from its start.
    chunk = steps.prefill_tokens / steps.prefill_requests.clip(lower=1)
    made["prefill_pairs"] = steps.prefill_tokens * (chunk + 1) / 2
    made["period_us"] = 1e6 * (steps.done_s - start_s)
    working = (steps.prefill_tokens + steps.decode_tokens > 0) & (made.period_us > 0)
    return made[working & steps.in_window].reset_index(drop=True)


def fit(steps: pd.DataFrame, *, frontend_ms: float = 0.0, fitted_on: str = "") -> FittedCost:
    """The cost model that explains ``steps`` (as of ``busy_steps``); raises ResultError for few."""
    if len(steps) < MIN_STEPS:
        raise ResultError(f"{len(steps)} busy steps are too few to fit on: {MIN_STEPS} are needed")
    target = steps.period_us.to_numpy()
    names = _features_that_help(steps, target)
    features = _matrix(steps, names)
    solution, _ = _robust_solution(features, target)
    # Relative least squares leans to small values: the mean step must come out right.
    solution = solution * target.sum() / (features @ solution).sum()
    ratio = target / (features @ solution)
    quantiles = np.quantile(ratio, np.linspace(0, 1, NUM_QUANTILES))
    # Interpolating between quantiles must not add time either.
    quantiles /= np.trapezoid(quantiles, dx=1 / (NUM_QUANTILES - 1)) / ratio.mean()
    return FittedCost(
        constant_us=float(solution[0]),
        coefficients_us={n: float(c) for n, c in zip(names, solution[1:], strict=True)},
        ratio_quantiles=tuple(float(q) for q in quantiles.round(5)),
        frontend_ms=frontend_ms,
        fitted_on=fitted_on,
    )


def _matrix(steps: pd.DataFrame, names: Sequence[str]) -> np.ndarray:
    return np.column_stack([np.ones(len(steps)), steps[list(names)].to_numpy(dtype=float)])


def _features_that_help(steps: pd.DataFrame, target: np.ndarray) -> list[str]:
    """``BASIC`` features, and of the others those that lower the squared error by ``WORTH``.

    Prompts, their lengths and their squares come and go together; without this a fit gives one
    of them what belongs to another.
    """
    names = [name for name in BASIC if steps[name].any()]
    others = [name for name in FITTED_FEATURES if name not in BASIC and steps[name].any()]
    _, error = _robust_solution(_matrix(steps, names), target)
    while others:
        tried = {n: _robust_solution(_matrix(steps, [*names, n]), target)[1] for n in others}
        best = min(tried, key=tried.__getitem__)
        if tried[best] > (1 - WORTH) * error:
            break
        names.append(best)
        others.remove(best)
        error = tried[best]
    return names


def _robust_solution(features: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, float]:
    """The fit of relative errors, and its mean squared error over the usual steps."""
    # A pause of the machine must not bend the fit; it stays in the quantiles.
    usual = target < np.inf
    for _ in range(3):
        weighted = features[usual] / target[usual, None]
        solution = nonnegative_least_squares(weighted, np.ones(usual.sum()))
        error = float(np.mean((weighted @ solution - 1) ** 2))
        ratio = target / (features @ solution)
        usual = ratio < 3 * np.median(ratio)
    return solution, error


def nonnegative_least_squares(features: np.ndarray, target: np.ndarray) -> np.ndarray:
    """x >= 0 that minimises |features x - target|; shapes (n, k), (n,) -> (k,).

    Lawson and Hanson's active set method.
    """
    scale = np.linalg.norm(features, axis=0)
    a = features / np.where(scale > 0, scale, 1.0)
    x, free = np.zeros(a.shape[1]), np.zeros(a.shape[1], dtype=bool)
    for _ in range(10 * a.shape[1]):
        gradient = a.T @ (target - a @ x)
        gradient[free] = -np.inf
        if gradient.max() <= 1e-9 * np.linalg.norm(target):
            break
        free[np.argmax(gradient)] = True
        while True:
            trial = np.zeros_like(x)
            trial[free] = np.linalg.lstsq(a[:, free], target, rcond=None)[0]
            if trial[free].min() > 0:
                x = trial
                break
            shrinking = free & (trial <= 0)
            step = np.min(x[shrinking] / (x[shrinking] - trial[shrinking]))
            x = x + step * (trial - x)
            free &= x > 1e-12
            if not free.any():
                break
    return x / np.where(scale > 0, scale, 1.0)


def frontend_ms(run: Run) -> float:
    """What a client waits beyond the engine's own TTFT: median over the window, 0 at least."""
    kept = run.kept
    if not len(run.engine_ttft_ms) or kept.empty:
        return 0.0
    return max(0.0, float(kept.ttft_ms.median() - np.median(run.engine_ttft_ms)))


def calibrate(folders: Sequence[Path]) -> tuple[FittedCost, pd.DataFrame]:
    """The model fitted on these runs and the steps it was fitted on; raises ResultError."""
    runs = [load_run(folder) for folder in folders]
    steps = pd.concat([busy_steps(run) for run in runs], ignore_index=True)
    names = ", ".join(f"{run.info.folder.parent.name}/{run.info.folder.name}" for run in runs)
    extra_ms = float(np.mean([frontend_ms(run) for run in runs]))
    return fit(steps, frontend_ms=extra_ms, fitted_on=names), steps


def report(model: FittedCost, steps: pd.DataFrame) -> str:
    """The coefficients and how well they explain the steps they were fitted on."""
    fitted_us = model.constant_us + sum(
        each_us * steps[name] for name, each_us in model.coefficients_us.items()
    )
    error = (
        1
        - ((steps.period_us - fitted_us) ** 2).sum()
        / ((steps.period_us - steps.period_us.mean()) ** 2).sum()
    )
    lines = [f"{len(steps)} steps, R2 {error:.3f}; step time = {model.constant_us:.1f} us"]
    lines += [f"  + {each_us:.4g} us x {name}" for name, each_us in model.coefficients_us.items()]
    spread = np.quantile(model.ratio_quantiles, [0.05, 0.5, 0.95, 0.99])
    lines.append("noise, recorded/fitted, P5 P50 P95 P99: " + " ".join(f"{v:.2f}" for v in spread))
    lines.append(f"front end: {model.frontend_ms:.2f} ms")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; exit code 2 when a run cannot be used."""
    parser = argparse.ArgumentParser(
        prog="python -m lab3.calibrate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="folder of a live run")
    parser.add_argument("--out", type=Path, required=True, help="file of the cost model")
    args = parser.parse_args(argv)
    try:
        model, steps = calibrate(args.runs)
    except ResultError as error:
        print(f"lab3.calibrate: {error}", file=sys.stderr)
        return 2
    args.out.parent.mkdir(parents=True, exist_ok=True)
    save_cost_model(model, args.out)
    print(report(model, steps))
    return 0


if __name__ == "__main__":
    sys.exit(main())

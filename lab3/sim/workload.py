"""Requests to simulate: how long, and when they come.

    random_workload(1000, 1024, 256, seed=42, rate=16)   # what `vllm bench serve` would send

Arrivals and lengths are separate: lengths from vLLM's random data set, a trace or a distribution;
arrivals as vLLM's client draws them (Poisson or Gamma, rescaled to end at N / rate), or replayed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

ALL_AT_ONCE = math.inf


@dataclass(frozen=True)
class Workload:
    """One request per index, sorted by arrival.

    ``output_tokens``: what the model will produce; the scheduler does not see it unless it is
    ``max_tokens``. ``predicted_tokens``: what it is told instead, None for a request without a
    prediction. ``max_output_tokens``: the ``max_tokens`` of every request; None asks for exactly
    the true output, as ``vllm bench serve`` does. ``notes``: what was done to the lengths.
    """

    name: str
    arrival_s: tuple[float, ...]
    input_tokens: tuple[int, ...]
    output_tokens: tuple[int, ...]
    predicted_tokens: tuple[int | float | None, ...] = ()
    max_output_tokens: int | None = None
    shared_prefix_tokens: int = 0
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        lengths = {len(self.arrival_s), len(self.input_tokens), len(self.output_tokens)}
        if self.predicted_tokens:
            lengths.add(len(self.predicted_tokens))
        if len(lengths) != 1 or not self.arrival_s:
            raise ValueError(f"the workload {self.name} has no requests or uneven columns")
        if min(self.input_tokens) < 1 or min(self.output_tokens) < 1:
            raise ValueError(f"the workload {self.name} has a request without tokens")
        if any(b < a for a, b in zip(self.arrival_s, self.arrival_s[1:], strict=False)):
            raise ValueError(f"the workload {self.name} is not sorted by arrival")

    def __len__(self) -> int:
        return len(self.arrival_s)

    @cached_property
    def longest(self) -> int:
        """Tokens of the longest request, prompt and output."""
        return max(map(sum, zip(self.input_tokens, self.output_tokens, strict=True)))

    def max_tokens(self, index: int) -> int:
        """``max_tokens`` of request ``index``."""
        most = self.max_output_tokens or 0
        return max(most, self.output_tokens[index])

    @property
    def offered_rate(self) -> float:
        """Requests per second over the time in which they come; infinite if all come at once."""
        span_s = self.arrival_s[-1] - self.arrival_s[0]
        return len(self) / span_s if span_s > 0 else math.inf

    def with_arrivals(self, arrival_s: Sequence[float]) -> Workload:
        return replace(self, arrival_s=tuple(float(t) for t in arrival_s))

    def noting(self, note: str) -> Workload:
        return replace(self, notes=(*self.notes, note))


def random_workload(
    num_prompts: int,
    input_len: int,
    output_len: int,
    *,
    seed: int = 0,
    rate: float = ALL_AT_ONCE,
    range_ratio: float = 0.0,
    burstiness: float = 1.0,
    prefix_len: int = 0,
) -> Workload:
    """The requests of ``vllm bench serve --dataset-name random`` with these options.

    Lengths come from vLLM's own sampling. They are the asked ones: a tokenizer that does not give
    every random token back may shorten a live prompt by a few tokens.
    """
    input_tokens, output_tokens = random_lengths(
        num_prompts, input_len, output_len, seed=seed, range_ratio=range_ratio
    )
    return Workload(
        name=f"random {input_len}/{output_len}"
        + (f" +-{range_ratio:.0%}" if range_ratio else "")
        + (f", shared prefix {prefix_len}" if prefix_len else ""),
        arrival_s=tuple(bench_arrivals(num_prompts, rate, seed=seed, burstiness=burstiness)),
        input_tokens=tuple(prefix_len + n for n in input_tokens),
        output_tokens=tuple(output_tokens),
        shared_prefix_tokens=prefix_len,
    )


class _NoTokenizer:
    """What vLLM's length sampling asks of a tokenizer."""

    vocab_size = 50_000

    def num_special_tokens_to_add(self) -> int:
        return 0


def random_lengths(
    num_prompts: int, input_len: int, output_len: int, *, seed: int, range_ratio: float = 0.0
) -> tuple[list[int], list[int]]:
    """(input tokens, output tokens) as vLLM's random data set draws them."""
    from vllm.benchmarks.datasets.utils import get_sampling_params

    if min(num_prompts, input_len, output_len) < 1:
        raise ValueError("a random workload needs at least 1 request, input and output token")
    inputs, outputs, _ = get_sampling_params(
        np.random.default_rng(seed), num_prompts, range_ratio, input_len, output_len, _NoTokenizer()
    )
    return [max(int(n), 1) for n in inputs], [int(n) for n in outputs]


def bench_arrivals(
    num_prompts: int, rate: float, *, seed: int = 0, burstiness: float = 1.0
) -> list[float]:
    """Send times in seconds as ``vllm bench serve`` draws them for this seed.

    Gaps are Gamma distributed (``burstiness`` 1: a Poisson process; ``inf``: even) and rescaled so
    that the last request is sent at ``num_prompts / rate``.
    """
    if not rate > 0:
        raise ValueError(f"the request rate must be above 0, not {rate}")
    if not burstiness > 0:
        raise ValueError(f"burstiness must be above 0, not {burstiness}")
    if rate == math.inf:
        return [0.0] * num_prompts
    if burstiness == math.inf:
        gaps_s = np.full(num_prompts, 1.0 / rate)
    else:
        # The client draws from numpy's global generator, which it has seeded.
        draw = np.random.RandomState(seed)
        gaps_s = draw.gamma(shape=burstiness, scale=1.0 / (rate * burstiness), size=num_prompts)
    sent_s = np.cumsum(gaps_s)
    if sent_s[-1] > 0:
        sent_s *= num_prompts / rate / sent_s[-1]
    return sent_s.tolist()


def lognormal_lengths(
    num_prompts: int, quantiles: dict[float, float], *, rng: np.random.Generator, most: int
) -> list[int]:
    """Token counts whose distribution passes through ``quantiles`` (share -> tokens).

    Between the known quantiles the logarithm is linear in the normal score, outside it goes on
    with the nearest slope; clipped to 1..``most``.
    """
    from statistics import NormalDist

    shares = sorted(quantiles)
    scores = [NormalDist().inv_cdf(share) for share in shares]
    logs = [math.log(quantiles[share]) for share in shares]
    draws = rng.standard_normal(num_prompts)
    values = np.interp(draws, scores, logs)
    low_slope = (logs[1] - logs[0]) / (scores[1] - scores[0])
    high_slope = (logs[-1] - logs[-2]) / (scores[-1] - scores[-2])
    values = np.where(draws < scores[0], logs[0] + low_slope * (draws - scores[0]), values)
    values = np.where(draws > scores[-1], logs[-1] + high_slope * (draws - scores[-1]), values)
    return np.clip(np.rint(np.exp(values)), 1, most).astype(int).tolist()


# What the lengths of public traces look like, by quantiles, so that experiments need no trace.
# azure-conv-like: Azure LLM inference trace 2023, conversation (19,366 rows).
# burstgpt-like: first 59,999 rows of BurstGPT. decode-heavy: short questions, long answers.
SHAPES: dict[str, tuple[dict[float, float], dict[float, float]]] = {
    "azure-conv-like": (
        {0.5: 1020, 0.9: 2735, 0.99: 4142},
        {0.5: 129, 0.9: 424, 0.99: 601},
    ),
    "burstgpt-like": ({0.5: 74, 0.9: 1291, 0.99: 3023}, {0.5: 14, 0.9: 401, 0.99: 757}),
    "sharegpt-like": ({0.5: 1730, 0.9: 5696, 0.99: 7434}, {0.5: 415, 0.9: 834, 0.99: 998}),
    "decode-heavy": ({0.5: 100, 0.9: 220, 0.99: 400}, {0.5: 1000, 0.9: 1600, 0.99: 2200}),
}


def shaped_workload(shape: str, num_prompts: int, *, seed: int, rate: float) -> Workload:
    """A generated workload with the quantiles of ``SHAPES[shape]``, input and output independent.

    Raises ValueError with the known shapes.
    """
    if shape not in SHAPES:
        raise ValueError(f"unknown shape {shape!r}; known: {', '.join(SHAPES)}")
    rng = np.random.default_rng(seed)
    inputs, outputs = SHAPES[shape]
    return Workload(
        name=f"{shape} (generated)",
        arrival_s=tuple(bench_arrivals(num_prompts, rate, seed=seed)),
        input_tokens=tuple(lognormal_lengths(num_prompts, inputs, rng=rng, most=16_384)),
        output_tokens=tuple(lognormal_lengths(num_prompts, outputs, rng=rng, most=4_096)),
    )


def scale_rate(workload: Workload, factor: float) -> Workload:
    """The same requests ``factor`` times as fast."""
    if not factor > 0:
        raise ValueError(f"a rate can only be scaled by a factor above 0, not {factor}")
    start_s = workload.arrival_s[0]
    arrivals = [start_s + (t - start_s) / factor for t in workload.arrival_s]
    return workload.with_arrivals(arrivals).noting(f"arrivals {factor:g} times as fast")


def redraw_arrivals(
    workload: Workload, rate: float, *, seed: int, burstiness: float = 1.0
) -> Workload:
    """The same lengths in the same order, sent as ``vllm bench serve`` would at ``rate``."""
    arrivals = bench_arrivals(len(workload), rate, seed=seed, burstiness=burstiness)
    return workload.with_arrivals(arrivals).noting(f"arrivals drawn at {rate:g}/s")


def fit_lengths(workload: Workload, longest: int, how: str) -> Workload:
    """Requests of more than ``longest`` tokens (prompt + output) made to fit.

    ``how``: "clip" shortens the output to at most half of ``longest`` and the prompt to the rest;
    "drop" leaves the request out; "refuse" raises ValueError. What was done is noted.
    """
    over = [i + o > longest for i, o in _lengths(workload)]
    count = sum(over)
    if not count:
        return workload
    if how == "refuse":
        raise ValueError(f"{count} of {len(workload)} requests are longer than {longest} tokens")
    if how == "drop":
        keep = [not long for long in over]
        return _select(workload, keep).noting(f"{count} requests over {longest} tokens dropped")
    outputs = [min(o, longest // 2) if long else o for long, (_, o) in _zip(over, workload)]
    inputs = [min(i, longest - o) for (i, _), o in zip(_lengths(workload), outputs, strict=True)]
    clipped = replace(workload, input_tokens=tuple(inputs), output_tokens=tuple(outputs))
    return clipped.noting(f"{count} of {len(workload)} requests clipped to {longest} tokens")


def head(workload: Workload, count: int, start: int = 0) -> Workload:
    """``count`` requests from number ``start`` on, the first of them at time 0."""
    chosen = [start <= index < start + count for index in range(len(workload))]
    if not any(chosen):
        raise ValueError(f"{workload.name} has only {len(workload)} requests, none from {start} on")
    part = _select(workload, chosen)
    first_s = part.arrival_s[0]
    return part.with_arrivals([t - first_s for t in part.arrival_s])


def sample(workload: Workload, count: int, *, seed: int) -> Workload:
    """``count`` requests drawn without order or replacement; arrivals must be drawn anew."""
    if count >= len(workload):
        return workload
    chosen = set(np.random.default_rng(seed).choice(len(workload), count, replace=False).tolist())
    part = _select(workload, [index in chosen for index in range(len(workload))])
    return part.noting(f"{count} of {len(workload)} requests drawn with seed {seed}")


def _lengths(workload: Workload):
    return zip(workload.input_tokens, workload.output_tokens, strict=True)


def _zip(over: Sequence[bool], workload: Workload):
    return zip(over, _lengths(workload), strict=True)


def _select(workload: Workload, keep: Sequence[bool]) -> Workload:
    def part(values: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(v for v, kept in zip(values, keep, strict=True) if kept) if values else ()

    return replace(
        workload,
        arrival_s=part(workload.arrival_s),
        input_tokens=part(workload.input_tokens),
        output_tokens=part(workload.output_tokens),
        predicted_tokens=part(workload.predicted_tokens),
    )

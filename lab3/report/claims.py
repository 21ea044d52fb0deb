"""What the report's text claims, as functions of the result files.

``#claim("name")[...]`` in report/*.typ prints its text only while the function is true; otherwise
the build ends and names the claim. A sentence that only quotes numbers needs none: its numbers and
words ("0.73 倍，变好") come from the files.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pandas as pd

from experiments.report import relative
from lab3.captions import TINY_GAP_WARNING
from lab3.report.phrases import direction
from lab3.report.results import CANDIDATES, DLA, TASK1, TASK1_REAL, TASK3, TRACE, Results
from lab3.sweep import RATE_BOUND_SHARE, latency_trends, recommended_x, request_rate
from lab3.task1.job import EOS, FIXED

Claim = Callable[[Results], bool]
CLAIMS: dict[str, Claim] = {}


def claim(name: str) -> Callable[[Claim], Claim]:
    """Registers a claim under the name that the text uses."""

    def register(function: Claim) -> Claim:
        CLAIMS[name] = function
        return function

    return register


def broken(results: Results) -> list[str]:
    """The claims that do not hold: "name (what it says)"."""
    return [
        f"{name}: {function.__doc__}" for name, function in CLAIMS.items() if not function(results)
    ]


def against_default(results: Results, folder: str, arm: str, metric: str) -> str:
    """better, worse, noise or unknown."""
    own, base = (results.spread(folder, one, metric) for one in (arm, "default"))
    return direction(own, base, metric)


def speeds(results: Results, name: str, mode: str = FIXED) -> dict[str, float]:
    """Output tokens per second of each plan of Task 1."""
    return results.task1(name).loc[mode].output_tokens_per_s.to_dict()


@claim("task1-vllm-fastest")
def vllm_is_fastest(results: Results) -> bool:
    """vLLM writes more tokens per second than every transformers plan, with both models."""
    found = [speeds(results, name) for name in (TASK1, TASK1_REAL)]
    return all(own["vllm"] > max(v for k, v in own.items() if k != "vllm") for own in found)


@claim("task1-batching-helps")
def batching_helps(results: Results) -> bool:
    """A static batch beats the serial loop, with both models."""
    found = [speeds(results, name) for name in (TASK1, TASK1_REAL)]
    return all(own["hf-static"] > own["hf-serial"] for own in found)


@claim("task1-static-wastes-kv")
def static_batch_wastes_kv(results: Results) -> bool:
    """The static batch leaves a larger share of its KV slots unused than vLLM's blocks do."""
    rows = results.task1(TASK1_REAL).kv_waste_share
    return rows[FIXED, "hf-static"] > rows[FIXED, "vllm"]


@claim("task1-rows-idle")
def rows_of_a_static_batch_idle(results: Results) -> bool:
    """Where answers end at eos, static rows idle and vLLM hands answers over sooner."""
    rows = results.task1(TASK1_REAL)
    static, vllm = rows.loc[(EOS, "hf-static")], rows.loc[(EOS, "vllm")]
    return static.idle_row_share > 0.05 and vllm.latency_p50_s < static.latency_p50_s


@claim("task1-texts-same")
def engines_write_the_same(results: Results) -> bool:
    """In float32 vLLM writes the very tokens of transformers for every prompt."""
    identical, compared = results.identical_texts(TASK1)
    return identical == compared > 0


def trends(results: Results) -> dict[str, str]:
    """Directions of Task 2's latencies, by "TTFT P50" and the like."""
    return {trend.name: trend.direction for trend in latency_trends(results.sweep)}


@claim("task2-ttft-falls")
def ttft_falls(results: Results) -> bool:
    """A larger X lowers TTFT P50."""
    return trends(results)["TTFT P50"] == "falls"


@claim("task2-itl-p99-rises")
def itl_rises(results: Results) -> bool:
    """A larger X raises ITL P99."""
    return trends(results)["ITL P99"] == "rises"


@claim("task2-itl-p50-same")
def itl_p50_does_not_move(results: Results) -> bool:
    """X does not change ITL P50 by more than noise or 5 %."""
    return trends(results)["ITL P50"] in ("flat", "noise")


@claim("task2-load-bound-same")
def load_limits_throughput(results: Results) -> bool:
    """Every X keeps up with the offered load, so throughput does not depend on X."""
    rows = results.sweep
    return bool(rows.requests_per_s.min() >= RATE_BOUND_SHARE * request_rate(rows))


@claim("task2-small-x-for-chat")
def small_x_for_chat(results: Results) -> bool:
    """The X recommended for chat is the smallest one, and has the lowest ITL P99 of all."""
    rows = results.sweep
    return recommended_x(rows) == rows.itl_p99_ms.idxmin() == rows.x.min()


@claim("task3-a-itl-p99")
def a_is_worse_on_itl(results: Results) -> bool:
    """A's ITL P99 is above the default's, beyond noise."""
    return against_default(results, TASK3, "prefill_first", "itl_p99_ms") == "worse"


@claim("task3-a-max-gap")
def a_stalls_longer(results: Results) -> bool:
    """The longest stall of a request is longer under A, beyond noise, and by more than ITL P99."""
    rows = results.strategies(TASK3)[["max_gap_p99_ms", "itl_p99_ms"]]
    ratios = rows.loc["prefill_first"] / rows.loc["default"]
    worse = against_default(results, TASK3, "prefill_first", "max_gap_p99_ms") == "worse"
    return worse and ratios.max_gap_p99_ms > ratios.itl_p99_ms


@claim("task3-a-ttft-same")
def a_gains_no_ttft(results: Results) -> bool:
    """A's TTFT does not differ from the default's by more than noise."""
    metrics = ("ttft_p50_ms", "ttft_p99_ms")
    return all(against_default(results, TASK3, "prefill_first", m) == "noise" for m in metrics)


@claim("task3-controls-same")
def controls_are_the_same(results: Results) -> bool:
    """On equal lengths neither Passthrough nor SJF differs from the default by more than noise."""
    return all(
        against_default(results, TASK3, arm, metric) == "noise"
        for arm in ("passthrough", "sjf")
        for metric in ("ttft_p50_ms", "ttft_p99_ms", "itl_p50_ms", "itl_p99_ms", "e2e_mean_ms")
    )


@claim("task3-client-same")
def client_keeps_up(results: Results) -> bool:
    """The client reads single chunks: hardly any gap under 0.3 ms in any arm of Task 3."""
    return bool(results.strategies(TASK3).tiny_gap_share.max() < TINY_GAP_WARNING)


@claim("task3-a-pure")
def a_never_mixes(results: Results) -> bool:
    """No step of A mixes prompts and decodes, and some of vLLM's own steps do."""
    mixed = results.strategies(TASK3).mixed_step_share
    return mixed["prefill_first"] == 0 < mixed["passthrough"]


@claim("task3-throughput-same")
def throughput_is_the_same(results: Results) -> bool:
    """Below capacity no strategy changes the throughput by more than noise or 5 %."""
    rows = results.strategies(TASK3)
    ratios = rows.output_tokens_per_s / rows.output_tokens_per_s["default"]
    return all(
        abs(ratio - 1) < 0.05
        or against_default(results, TASK3, arm, "output_tokens_per_s") == "noise"
        for arm, ratio in ratios.items()
    )


@claim("candidates-same")
def no_candidate_differs(results: Results) -> bool:
    """On varied lengths no strategy differs from the default beyond noise."""
    return all(
        against_default(results, CANDIDATES, arm, metric) == "noise"
        for arm in results.strategies(CANDIDATES).index.drop("default")
        for metric in ("ttft_p50_ms", "itl_p99_ms", "e2e_mean_ms")
    )


LOOKING_AHEAD = ("future_peak", "dla_srpt")
CONTROLS = ("default", "passthrough")


def always_below(results: Results, folder: str, arms: tuple[str, ...], metric: str) -> bool:
    """Every run of ``arms`` has less of ``metric`` than every run of the controls that have it."""
    own = [results.spread(folder, arm, metric).high for arm in arms]
    base = [results.spread(folder, arm, metric).low for arm in CONTROLS]
    return max(own) < min(value for value in base if not math.isnan(value))


@claim("dla-live-preemptions")
def admission_preempts_less(results: Results) -> bool:
    """With admission by prediction every run preempts and recomputes less than any control run."""
    arms = ("dla", *LOOKING_AHEAD)
    return all(always_below(results, DLA, arms, m) for m in ("preemptions", "recompute_tax"))


@claim("dla-live-stalls")
def looking_ahead_stalls_less(results: Results) -> bool:
    """Every run of future peak and DLA-SRPT has shorter longest stalls than every control run."""
    return always_below(results, DLA, LOOKING_AHEAD, "max_gap_p99_ms")


@claim("dla-trace-preemptions")
def admission_preempts_less_on_a_trace(results: Results) -> bool:
    """On the trace every run with admission preempts, recomputes, stalls less than any control."""
    arms, metrics = ("dla", *LOOKING_AHEAD), ("preemptions", "recompute_tax", "max_gap_p99_ms")
    return all(always_below(results, TRACE, arms, metric) for metric in metrics)


@claim("dla-liars-same")
def the_honest_do_not_pay(results: Results) -> bool:
    """The mean over the rounds of each policy's JCT ratio lies within Passthrough's rounds."""
    jct = results.liars.pivot(index="seed", columns="arm", values="honest_mean_ms")
    ratios = jct.div(jct["default"], axis=0).drop(columns="default")
    control = ratios["passthrough"]
    return bool(ratios.mean().between(control.min(), control.max()).all())


@claim("dla-live-jct-same")
def jct_is_undecided(results: Results) -> bool:
    """No strategy's mean JCT differs from the default's beyond noise, Passthrough's neither."""
    arms = results.strategies(DLA).index.drop("default")
    return all(against_default(results, DLA, arm, "e2e_mean_ms") == "noise" for arm in arms)


@claim("dla-live-victim")
def victim_alone_gains_nothing(results: Results) -> bool:
    """Choosing the victim alone lowers neither mean JCT nor preemptions."""
    rows = results.strategies(DLA)[["e2e_mean_ms", "preemptions"]]
    return bool((rows.loc["dla_victim"] > rows.loc["default"]).all())


@claim("dla-live-simulated-same")
def simulation_counts_the_same(results: Results) -> bool:
    """Of every arm with a step record the simulator tells the preemptions to a quarter."""
    rows = results.dla_simulated.drop(index=["default", "watermark"])
    return bool(((rows.simulated_preemptions / rows.measured_preemptions - 1).abs() < 0.25).all())


@claim("dla-live-published")
def published_claims_in_part(results: Results) -> bool:
    """Victim + reserve preempts and recomputes less; JCT P50 is no better than the default's."""
    fewer = all(always_below(results, DLA, ("dla",), m) for m in ("preemptions", "recompute_tax"))
    return fewer and all(
        against_default(results, DLA, arm, "e2e_p50_ms") != "better"
        for arm in ("dla", "dla_victim")
    )


def dla_changes(results: Results, metric: str, predictions: str = "oracle") -> pd.Series:
    """Simulated change at load 1 with scarce KV, by (lengths, caching, arm)."""
    rows = results.dla_experiment
    rows = rows[(rows.load == "1.0") & (rows.kv == "scarce") & (rows.predictions == predictions)]
    return relative(rows, ("lengths", "caching"), metric)["mean"]


def each(changes: pd.Series, arm: str, caching: str | None = None) -> pd.Series:
    """Those of one arm, of all regimes or with caching "True" or "False"."""
    own = changes.xs(arm, level="arm")
    return own if caching is None else own.xs(caching, level="caching")


@claim("sim-dla-admission")
def simulated_admission_preempts_less(results: Results) -> bool:
    """Victim + reserve at least halves preemptions and recomputed tokens in every regime."""
    return all(
        (each(dla_changes(results, metric), "remaining+reserve") <= -0.5).all()
        for metric in ("preemptions", "recomputed_tokens")
    )


@claim("sim-dla-watermark")
def watermark_gets_much_of_it(results: Results) -> bool:
    """Without caching the watermark gains 40 % or more of what victim + reserve gains in JCT."""
    found = dla_changes(results, "e2e_mean_ms")
    reserve, mark = (each(found, arm, "False") for arm in ("remaining+reserve", "watermark 0.03"))
    return bool((reserve < 0).all() and (mark <= 0.4 * reserve).all())


@claim("sim-dla-caching")
def caching_takes_the_gain(results: Results) -> bool:
    """Prefix caching makes victim + reserve gain less for every kind of lengths."""
    found = dla_changes(results, "e2e_mean_ms")
    without, cached = (each(found, "remaining+reserve", on) for on in ("False", "True"))
    return bool((without < cached).all() and (without < 0).all())


@claim("sim-dla-srpt")
def srpt_wins_where_prompts_queue(results: Results) -> bool:
    """DLA-SRPT has the lowest mean JCT for conversation lengths, with and without caching."""
    found = dla_changes(results, "e2e_mean_ms").drop("decode-heavy", level="lengths")
    best = found.groupby(level=["lengths", "caching"]).idxmin()
    return all(arm == "dlasrpt" for *_, arm in best)


@claim("sim-dla-bias")
def half_too_much_does_no_harm(results: Results) -> bool:
    """Predictions half too long cost the two that look ahead at most 10 % of the default's JCT."""
    found = dla_changes(results, "e2e_mean_ms", "bias:1.5")
    arms = ("remaining_per_context+future_peak", "dlasrpt")
    return all((each(found, arm, "False") <= 0.1).all() for arm in arms)


LARGE = "qwen2.5-7b on a100-80g"


def task_changes(results: Results, metric: str, arm: str) -> pd.Series:
    """Simulated change on the 7B engine, by (lengths, point)."""
    rows = results.simulated("tasks")
    rows = rows[(rows.budget == "2048") & (rows.engine == LARGE)]
    return relative(rows, ("lengths", "point"), metric)["mean"].xs(arm, level="arm")


@claim("sim-tasks-stalls")
def stalls_grow_more_than_the_percentile(results: Results) -> bool:
    """Under A the longest gap at least quintuples everywhere, and grows more than ITL P99."""
    gaps, itl = (task_changes(results, m, "A") for m in ("max_gap_p99_ms", "itl_p99_ms"))
    return bool((gaps > 4).all() and (gaps > itl).all())


@claim("sim-tasks-adaptive")
def adaptive_wins_everywhere(results: Results) -> bool:
    """Adaptive lowers ITL P99, the longest gap and mean E2E at every point."""
    metrics = ("itl_p99_ms", "max_gap_p99_ms", "e2e_mean_ms")
    return all((task_changes(results, m, "adaptive") < -0.02).all() for m in metrics)


@claim("sim-tasks-literal")
def literal_decode_first_collapses(results: Results) -> bool:
    """Literal decode-first makes less than half of the default's tokens per second."""
    found = task_changes(results, "output_tokens_per_s", "decode-first")
    return bool(len(found) and (found < -0.5).all())


@claim("validation-live-missed")
def live_validation_misses(results: Results) -> bool:
    """Simulated mean TTFT is over 10 % too long for every policy; equal steps differ as much."""
    rows = results.validation_live
    errors = rows.simulated / rows.measured - 1
    steps = rows.measured["step_mean_ms"][["dla", "passthrough", "sjf"]]
    return bool((errors["ttft_mean_ms"] > 0.1).all() and steps.max() > 1.1 * steps.min())

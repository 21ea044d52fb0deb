"""How long an engine step takes, from what the step computes.

``Roofline`` derives it from a device and a model; ``FittedCost`` is what ``lab3.calibrate``
learned from the recorded steps of a live run. Both say of a ``StepLoad`` how many seconds the
engine is busy; in the roofline, async scheduling hides the host's part behind the device's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol

from lab3.sim.presets import Device, Model, find_device, find_model


@dataclass(slots=True)
class StepLoad:
    """What one engine step computes.

    Prefill: tokens of requests that do not decode yet, also when recomputed. ``prefill_pairs``:
    (new token, token it attends to), summed over prefill tokens. ``decode_context_tokens``: KV
    tokens that the decoding requests read. ``kv_tokens``: tokens that the blocks held by requests
    have room for.
    """

    prefill_tokens: int = 0
    prefill_requests: int = 0
    prefill_pairs: float = 0.0
    prefill_context_tokens: int = 0
    decode_tokens: int = 0
    decode_requests: int = 0
    decode_context_tokens: int = 0
    kv_tokens: int = 0


class CostModel(Protocol):
    """``step_s(load, overlap)``: seconds that a step keeps the engine busy."""

    name: str
    frontend_s: float

    def step_s(self, load: StepLoad, overlap: bool) -> float: ...

    def parameters(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Roofline:
    """Step time from bytes over bandwidth and operations over peak.

        linear    = max(2 * parameters * tokens / FLOPs, weight bytes / bandwidth)
        attention = prefill pairs * FLOPs per pair / FLOPs + KV bytes read / bandwidth
        other     = activation bytes / bandwidth + layers * layer_overhead_us
        device    = linear + attention + other
        host      = step_overhead_ms + requests * request_overhead_us
        step      = device + host, or max(device, host) under async scheduling

    with the device's efficiencies applied to both peaks. ``frontend_ms``: what tokenizing and HTTP
    add before a request reaches the engine. ``devices``: tensor-parallel devices that share bytes
    and operations evenly, without a price for their communication.

    The overheads are assumptions: ``layer_overhead_us`` for the gaps between a layer's kernels in a
    CUDA graph, ``step_overhead_ms`` for input preparation and output handling,
    ``request_overhead_us`` what vLLM's ``schedule()`` and ``update_from_output()`` take per request
    on a current core (10 to 13 us when this simulator runs them).
    """

    device: Device
    model: Model
    layer_overhead_us: float = 12.0
    step_overhead_ms: float = 1.5
    request_overhead_us: float = 12.0
    frontend_ms: float = 0.0
    devices: int = 1

    # Set from the rest, once: this is evaluated at every step.
    flops_per_s: float = field(init=False, repr=False)
    bytes_per_s: float = field(init=False, repr=False)

    def __post_init__(self) -> None:
        device = self.device
        flops = self.devices * device.peak_tflops * 1e12 * device.compute_efficiency
        moved = self.devices * device.bandwidth_gb_s * 1e9 * device.bandwidth_efficiency
        object.__setattr__(self, "flops_per_s", flops)
        object.__setattr__(self, "bytes_per_s", moved)

    @classmethod
    def named(cls, model: str, hardware: str, **parameters: Any) -> Roofline:
        """Presets by name; raises ValueError with the known names for an unknown one."""
        known = {f.name for f in fields(cls) if f.init} - {"device", "model"}
        efficiencies = {"compute_efficiency", "bandwidth_efficiency"}
        if unknown := set(parameters) - known - efficiencies:
            raise ValueError(
                f"unknown cost parameter {sorted(unknown)[0]!r}; "
                f"known: {', '.join(sorted(known | efficiencies))}"
            )
        device = find_device(hardware)
        own = {key: parameters.pop(key) for key in efficiencies & set(parameters)}
        return cls(Device(**(asdict(device) | own)), find_model(model), **parameters)

    @property
    def name(self) -> str:
        several = f"{self.devices} x " if self.devices > 1 else ""
        return f"roofline, {self.model.label} on {several}{self.device.label}"

    @property
    def frontend_s(self) -> float:
        return self.frontend_ms * 1e-3

    def device_s(self, load: StepLoad) -> float:
        """Seconds of the device alone."""
        model, flops, moved = self.model, self.flops_per_s, self.bytes_per_s
        tokens = load.prefill_tokens + load.decode_tokens
        rows = load.prefill_requests + load.decode_requests
        linear_flops = 2 * (model.layer_params * tokens + model.head_params * rows)
        linear_s = max(linear_flops / flops, model.weight_bytes / moved)
        kv_tokens = load.decode_context_tokens + load.prefill_context_tokens + tokens
        attention_s = load.prefill_pairs * model.attention_flops_per_pair / flops
        attention_s += kv_tokens * model.kv_bytes_per_token / moved
        other_s = tokens * model.activation_bytes_per_token / moved
        return linear_s + attention_s + other_s + model.layers * self.layer_overhead_us * 1e-6

    def host_s(self, load: StepLoad) -> float:
        """Seconds of scheduling, input preparation and output handling."""
        requests = load.prefill_requests + load.decode_requests
        return self.step_overhead_ms * 1e-3 + requests * self.request_overhead_us * 1e-6

    def step_s(self, load: StepLoad, overlap: bool) -> float:
        device_s, host_s = self.device_s(load), self.host_s(load)
        return max(device_s, host_s) if overlap else device_s + host_s

    def parameters(self) -> dict[str, Any]:
        public = {f.name: getattr(self, f.name) for f in fields(self) if f.init}
        return public | {
            "kind": "roofline",
            "device": asdict(self.device),
            "model": asdict(self.model),
        }


FITTED_FEATURES = (
    "prefill_tokens",
    "prefill_requests",
    "prefill_pairs",
    "decode_requests",
    "kv_tokens",
)


@dataclass(frozen=True)
class FittedCost:
    """Step time as a sum of non-negative shares, fitted on a live run's steps.

        step = constant_us + sum of coefficients_us[feature] * feature

    over ``FITTED_FEATURES``. ``ratio_quantiles``: quantiles (evenly spaced, first 0, last 1) of
    recorded over fitted step time; a simulation draws each step's ratio from them with its own
    seed, so that a noisy machine's tail is not simulated away. Empty: no noise.
    ``frontend_ms``: what a client waits beyond the engine's own TTFT.
    ``fitted_on``: the runs it comes from, in words.
    """

    constant_us: float
    coefficients_us: Mapping[str, float]
    ratio_quantiles: Sequence[float] = ()
    frontend_ms: float = 0.0
    fitted_on: str = ""

    @property
    def name(self) -> str:
        return f"fitted on {self.fitted_on}" if self.fitted_on else "fitted"

    @property
    def frontend_s(self) -> float:
        return self.frontend_ms * 1e-3

    def step_s(self, load: StepLoad, overlap: bool) -> float:
        step_us = self.constant_us
        for feature, each_us in self.coefficients_us.items():
            step_us += each_us * getattr(load, feature)
        return step_us * 1e-6

    def ratio(self, u: float) -> float:
        """The noise ratio at the quantile ``u`` in 0..1, linear between the known ones."""
        known = self.ratio_quantiles
        if not known:
            return 1.0
        place = u * (len(known) - 1)
        low = min(int(place), len(known) - 2)
        return known[low] + (known[low + 1] - known[low]) * (place - low)

    def parameters(self) -> dict[str, Any]:
        return {
            "kind": "fitted",
            "constant_us": self.constant_us,
            "coefficients_us": dict(self.coefficients_us),
            "ratio_quantiles": list(self.ratio_quantiles),
            "frontend_ms": self.frontend_ms,
            "fitted_on": self.fitted_on,
        }


def save_cost_model(model: FittedCost, path: Path) -> None:
    """Write what ``load_cost_model`` reads."""
    path.write_text(json.dumps(model.parameters(), indent=1) + "\n", encoding="utf-8")


def load_cost_model(path: Path) -> FittedCost:
    """Raises ValueError in one line when ``path`` is no cost model of ``lab3.calibrate``."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        if content.pop("kind") != "fitted":
            raise KeyError("kind")
        model = FittedCost(**content)
    except OSError as error:
        raise ValueError(f"no cost model in {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(
            f"{path} is no cost model: make one with python -m lab3.calibrate"
        ) from None
    if unknown := set(model.coefficients_us) - set(FITTED_FEATURES):
        raise ValueError(f"{path} has the unknown feature {sorted(unknown)[0]!r}")
    return model

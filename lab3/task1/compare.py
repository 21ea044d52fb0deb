"""Runs the plans of Task 1 one after the other: prompts and jobs first, then a process a plan."""

import argparse
import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab3 import profile, provenance
from lab3.task1 import prompts as prompt_sources
from lab3.task1.job import EOS, FIXED, PLANS, SCHEMA, Job, write_json
from lab3.task1.kv_bytes import kv_bytes_per_token
from lab3.task1.launch import run_plan
from lab3.task1.measures import pass_of, plan_row
from lab3.task1.model import Model, find_model
from lab3.task1.report import RUN_FILE, report
from lab3.text_table import number

__all__ = ["measure", "report", "settings_from"]

NUM_SAMPLES = 3
SAMPLE_CHARS = 240


@dataclass(frozen=True)
class Settings:
    """What to run: the command line over the profile. Lengths are in tokens."""

    profile: dict[str, str]
    device: str
    model: str
    dtype: str
    num_prompts: int
    input_lens: tuple[int, int]
    max_new_tokens: int
    plans: tuple[str, ...]
    mode: str
    prompt_source: str
    sharegpt: Path | None
    max_batch: int
    sorted_batch: int
    memory_limit_gib: float
    seed: int
    out: Path


def settings_from(args: argparse.Namespace) -> Settings:
    """The command line's settings; raises ValueError with one line for a wrong one."""
    values = profile.load(args.profile)
    plans = tuple(dict.fromkeys(name.strip() for name in args.plans.split(",") if name.strip()))
    unknown = [plan for plan in plans if plan not in PLANS]
    if unknown or not plans:
        wrong = f"unknown plan {unknown[0]!r}" if unknown else "no plan given"
        raise ValueError(f"{wrong}: --plans takes {', '.join(PLANS)}")
    device = "cuda" if profile.device() == "gpu" and "gpu" in values["PROFILE"] else "cpu"
    num_prompts = _number(args.num_prompts, values, "TASK1_NUM_PROMPTS")
    shortest = _number(args.min_input_len, values, "TASK1_MIN_INPUT_LEN")
    longest = _number(args.max_input_len, values, "TASK1_MAX_INPUT_LEN")
    if shortest > longest:
        raise ValueError(f"--min-input-len {shortest} is above --max-input-len {longest}")
    return Settings(
        profile=values,
        device=device,
        model=args.model or values["TASK1_MODEL"],
        dtype=args.dtype or values["TASK1_DTYPE"],
        num_prompts=num_prompts,
        input_lens=(shortest, longest),
        max_new_tokens=_number(args.max_new_tokens, values, "TASK1_OUTPUT_LEN"),
        plans=tuple(plan for plan in PLANS if plan in plans),
        mode=EOS if args.stop_at_eos else FIXED,
        prompt_source=args.prompts,
        sharegpt=args.sharegpt,
        max_batch=args.max_batch,
        sorted_batch=args.sorted_batch or math.ceil(num_prompts / 4),
        memory_limit_gib=args.memory_limit_gib,
        seed=int(values["SEED"]) if args.seed is None else args.seed,
        out=args.out or default_folder(values, args),
    )


def _number(given: int | None, values: dict[str, str], key: str) -> int:
    value = given if given is not None else int(values[key])
    if value < 1:
        raise ValueError(f"{key.lower()} must be 1 or more, not {value}")
    return value


def default_folder(values: dict[str, str], args: argparse.Namespace) -> Path:
    """runs/task1-PROFILE, with the model's name and -eos where they differ from the default."""
    name = f"task1-{values['PROFILE']}"
    if args.model and args.model != values["TASK1_MODEL"]:
        name += "-" + args.model.removeprefix("local:").strip("/").rpartition("/")[2]
    if args.stop_at_eos:
        name += "-eos"
    return Path("runs") / name


def measure(settings: Settings) -> None:
    """Run all plans and write their results and ``run.json``; a plan that fails is reported later.

    Raises ValueError with one line when there is nothing to run: model, prompts or lengths.
    """
    started, began_s = time.strftime("%Y-%m-%dT%H:%M:%S%z"), time.monotonic()
    model = find_model(settings.model, settings.dtype)
    prompts = _prompts(settings, model)
    kv_bytes = kv_bytes_per_token(model.config, model.dtype)
    settings.out.mkdir(parents=True, exist_ok=True)
    results = {}
    for i, plan in enumerate(settings.plans, 1):
        job = make_job(settings, plan, model, prompts, kv_bytes)
        say(f"[{i}/{len(settings.plans)}] {PLANS[plan]}: loading {model.name} ({model.dtype})")
        results[plan] = run_plan(job, settings.out)
        row = plan_row(results[plan], settings.mode, [len(p) for p in prompts])
        if row.ok:
            say(f"    {number(row.total_s)} s, {number(row.output_tokens_per_s)} output tokens/s")
        else:
            say(f"    failed: {row.reason}")
    raw = provenance.collect()
    raw["profile"] = {"name": settings.profile["PROFILE"], "MODEL": model.name} | {
        key: value for key, value in settings.profile.items() if key.startswith("TASK1_")
    }
    run = raw | {
        "schema": SCHEMA,
        "task": "task1",
        "source": "measured",
        "setup": job.setup(),
        "mode": settings.mode,
        "model": model.name,
        "dtype": model.dtype,
        "device": settings.device,
        "asked": {"num_prompts": len(prompts)},
        "max_new_tokens": settings.max_new_tokens,
        "prompt_source": _source_name(settings, model),
        "prompt_lens": [len(p) for p in prompts],
        "seed": settings.seed,
        "kv_bytes_per_token": kv_bytes,
        "samples": samples(settings, model, prompts, results),
        "started": started,
        "wall_s": time.monotonic() - began_s,
    }
    write_json(settings.out / RUN_FILE, run)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _prompts(settings: Settings, model: Model) -> list[list[int]]:
    longest = settings.input_lens[1] + settings.max_new_tokens
    if longest > model.max_tokens:
        raise ValueError(
            f"{model.name} takes {model.max_tokens} tokens, but the longest prompt and its answer "
            f"take {longest}: lower --max-input-len or --max-new-tokens"
        )
    if settings.sharegpt:
        return prompt_sources.read_sharegpt(
            settings.sharegpt,
            model.tokenizer,
            settings.num_prompts,
            settings.input_lens,
            settings.seed,
        )
    return prompt_sources.make_prompts(
        model.tokenizer,
        settings.prompt_source,
        settings.num_prompts,
        settings.input_lens,
        settings.seed,
    )


def _source_name(settings: Settings, model: Model) -> str:
    if settings.sharegpt:
        return f"ShareGPT file {settings.sharegpt.name}"
    source = prompt_sources.resolve_source(model.tokenizer, settings.prompt_source)
    return {"text": "notes and a question", "vocab": "random vocabulary"}[source]


def make_job(
    settings: Settings, plan: str, model: Model, prompts: list[list[int]], kv_bytes: int
) -> Job:
    """The order for one plan's process."""
    # A second, short pass shows what the equal lengths of the first hide: rows that end early.
    both = settings.mode == FIXED and plan in ("hf-static", "vllm")
    return Job(
        plan=plan,
        model=model.path,
        dtype=model.dtype,
        device=settings.device,
        prompts=prompts,
        max_new_tokens=settings.max_new_tokens,
        eos_token_ids=model.eos_token_ids,
        pad_token_id=model.pad_token_id,
        modes=[FIXED, EOS] if both else [settings.mode],
        max_batch=settings.max_batch,
        sorted_batch=settings.sorted_batch,
        memory_limit_gib=0.0 if plan == "vllm" else settings.memory_limit_gib,
        engine_args=engine_args(settings, prompts, kv_bytes) if plan == "vllm" else {},
    )


def engine_args(settings: Settings, prompts: list[list[int]], kv_bytes: int) -> dict[str, Any]:
    """What the device asks of vLLM."""
    if settings.device != "cpu":
        return {"gpu_memory_utilization": float(settings.profile["GPU_MEMORY_UTILIZATION"])}
    block = int(settings.profile.get("BLOCK_SIZE", 32))
    # On a CPU the pool is memory taken from everybody: room for all requests and a spare block.
    blocks = 2 + sum(math.ceil((len(p) + settings.max_new_tokens) / block) for p in prompts)
    return {
        "enforce_eager": True,
        "block_size": block,
        "kv_cache_memory_bytes": blocks * block * kv_bytes,
    }


def samples(
    settings: Settings, model: Model, prompts: list[list[int]], results: dict[str, dict[str, Any]]
) -> list[dict[str, Any]]:
    """The first prompts' ends and what the plans answered, for people; none for random text."""
    if not settings.sharegpt and _source_name(settings, model) == "random vocabulary":
        return []

    def text(ids: list[int]) -> str:
        return " ".join(model.tokenizer.decode(ids, skip_special_tokens=True).split())

    shown = []
    for i in range(min(NUM_SAMPLES, len(prompts))):
        answers = {
            PLANS[plan]: text(found["outputs"][i])[:SAMPLE_CHARS]
            for plan, result in results.items()
            if plan in ("hf-serial", "vllm") and (found := pass_of(result, settings.mode))
        }
        prompt = text(prompts[i])
        if len(prompt) > SAMPLE_CHARS:
            prompt = f"{prompt[: SAMPLE_CHARS // 2]} ... {prompt[-SAMPLE_CHARS // 2 :]}"
        shown.append({"which": f"prompt {i + 1}", "prompt": prompt, "answers": answers})
    return shown

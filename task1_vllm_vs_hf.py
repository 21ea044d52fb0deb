"""Task 1: how much faster is vLLM than transformers, and why?

    python task1_vllm_vs_hf.py                   the profile's model: about a minute on a CPU
    python task1_vllm_vs_hf.py --model smollm2   a real model: half an hour on a CPU
    python task1_vllm_vs_hf.py --report-only     table, answers and figure from saved files

The same 64 prompts go through four plans, each in a process of its own:

    hf-serial         transformers, one request after the other
    hf-static         transformers, all requests padded into one batch (the largest that fits)
    hf-static-sorted  transformers, smaller batches of requests of like length
    vllm              vLLM, LLM.generate with all requests at once

Results: table.md, table.txt, task1.csv, task1.png/.svg/.pdf, and per plan a JSON file and a log.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))

PLAN_NAMES = ("hf-serial", "hf-static", "hf-static-sorted", "vllm")


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line; what is not given comes from the profile."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model", help="local:NAME, smollm2, a folder, or a Hugging Face name")
    add("--num-prompts", type=int, help="how many prompts (lab: 64)")
    add("--min-input-len", type=int, help="shortest prompt in tokens (lab: 128)")
    add("--max-input-len", type=int, help="longest prompt in tokens (lab: 512)")
    add("--max-new-tokens", type=int, help="new tokens of every answer (lab: 128)")
    add("--plans", default=",".join(PLAN_NAMES), help="which plans, with commas (default: all)")
    add("--out", type=Path, help="folder of the results (default: runs/task1-...)")
    add("--dtype", help="auto, bfloat16, float16 or float32")
    add(
        "--prompts",
        default="auto",
        choices=("auto", "vocab", "text"),
        help="where prompts come from",
    )
    add("--sharegpt", type=Path, metavar="FILE", help="take the prompts from a ShareGPT JSON file")
    add("--stop-at-eos", action="store_true", help="let answers end; count tokens up to the end")
    add("--max-batch", type=int, default=0, help="largest static batch to try (default: all)")
    add(
        "--sorted-batch", type=int, default=0, help="batch of hf-static-sorted (default: a quarter)"
    )
    add(
        "--memory-limit-gib",
        type=float,
        default=0.0,
        help="let transformers have no more than this",
    )
    add("--seed", type=int, help="seed of the prompts")
    add("--profile", help="cpu, cpu-full or gpu (default: $PROFILE, or what this machine is)")
    add("--report-only", action="store_true", help="run nothing, use the files in --out")
    return parser.parse_args(argv)


def use_lab_python(report_only: bool) -> None:
    """Go on in .venv if this Python lacks what is needed; make .venv first if it is missing."""
    needed = ("matplotlib", "pandas", "psutil", "tqdm") if report_only else ("vllm",)
    missing = [name for name in needed if not importlib.util.find_spec(name)]
    if not missing:
        return
    lab_python = ROOT / ".venv" / "bin" / "python"
    if os.environ.get("LAB3_IN_VENV") or Path(sys.prefix) == lab_python.parent.parent:
        sys.exit(f"error: .venv has no {missing[0]}: run 'bash setup.sh'")
    if os.environ.get("LAB3_SKIP_SETUP") != "1":
        print(f"this Python has no {missing[0]}: setting up .venv", file=sys.stderr)
        if subprocess.run(["bash", str(ROOT / "setup.sh")], stdout=sys.stderr.fileno()).returncode:
            sys.exit("error: setup.sh failed, see above")
    elif not lab_python.exists():
        sys.exit(
            f"error: this Python has no {missing[0]}, LAB3_SKIP_SETUP is set: run 'bash setup.sh'"
        )
    os.environ["LAB3_IN_VENV"] = "1"
    os.execv(lab_python, [str(lab_python), str(ROOT / Path(__file__).name), *sys.argv[1:]])


def main() -> int:
    args = parse_args()
    use_lab_python(args.report_only)
    from lab3.task1 import compare

    try:
        settings = compare.settings_from(args)
        if not args.report_only:
            compare.measure(settings)
        text, complete = compare.report(settings.out)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    print(f"\n{text}\n\nfiles: {settings.out}")
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())

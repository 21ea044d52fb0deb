"""How many bytes of KV cache a token takes on a server that runs, for tables in MiB.

The server's log says which model it loaded and in which dtype; the lab's formula (see
lab3/task1/kv_bytes.py) and the model's config.json do the rest. Reading the JSON itself keeps
transformers, and the seconds of its import, out of the runner.
"""

import json
import re
from pathlib import Path
from types import SimpleNamespace

from lab3.task1.kv_bytes import kv_bytes_per_token

_ENGINE = re.compile(
    r"Initializing a V1 LLM engine .*?model='(?P<model>[^']+)'.*?"
    r"\bdtype=torch\.(?P<dtype>\w+).*?\bkv_cache_dtype=(?P<kv_dtype>\w+)"
)


def kv_bytes_from_log(log: str) -> int | None:
    """Bytes of K and V that a token adds over all layers; None where that can't be known.

    Unknown for logs without the engine's own line, models without a config.json at hand, layers
    that are not all full attention, and quantised caches.
    """
    engine = _ENGINE.search(log)
    config = _config(engine["model"]) if engine else None
    if config is None:
        return None
    text = getattr(config, "text_config", None) or config
    if set(getattr(text, "layer_types", None) or ()) - {"full_attention"}:
        return None
    dtype = engine["dtype"] if engine["kv_dtype"] == "auto" else engine["kv_dtype"]
    try:
        return kv_bytes_per_token(config, dtype)
    except (AttributeError, ValueError, TypeError):
        return None


def _config(model: str) -> SimpleNamespace | None:
    path = Path(model) / "config.json"
    if not path.is_file():
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError

        try:
            cached = try_to_load_from_cache(model, "config.json")
        except HFValidationError:
            return None
        if not isinstance(cached, str):
            return None
        path = Path(cached)
    try:
        text = path.read_text(encoding="utf-8")
        return json.loads(text, object_hook=lambda keys: SimpleNamespace(**keys))
    except (OSError, ValueError):
        return None

"""What arms are called in the report."""

LABELS = {
    "default": "vLLM V1 默认",
    "passthrough": "Passthrough（对照）",
    "prefill_first": "A: Prefill-First",
    "sjf": "B1: SJF",
    "decode_first": "B: Pure Decode-First",
    "fair_share": "B2: Fair-Share",
    "adaptive": "B3: Adaptive Chunk",
    "dla": "DLA",
    "dla_srpt": "DLA-SRPT",
}
DLA_LABELS = LABELS | {
    "dla_victim": "DLA：只改 victim",
    "dla": "DLA：victim + 预留",
    "future_peak": "DLA：未来峰值准入",
    "watermark": "watermark 0.03（无预测）",
}


def label(folder: str, arm: str) -> str:
    """An arm's name in a comparison; an unknown arm keeps the name that the script gave it."""
    known = DLA_LABELS if folder.startswith("dla") else LABELS
    name, _, predictions = arm.partition("-")
    if name in known and predictions:
        return f"{known[name]}（{predictions}）"
    return known.get(arm, arm)

"""Devices and models by name, for the roofline. Every number says where it comes from."""

from __future__ import annotations

from dataclasses import dataclass

GIB = 2**30


@dataclass(frozen=True)
class Device:
    """What a data sheet says about an accelerator, and how much of it real kernels reach.

    ``peak_tflops``: dense BF16, accumulated in FP32, without sparsity, 1e12 operations/s.
    ``bandwidth_gb_s``: memory bandwidth in 1e9 bytes/s. ``memory_gib``: usable memory in GiB.
    ``compute_efficiency``, ``bandwidth_efficiency``: reachable shares of the two peaks.
    ``source``: of peak and bandwidth. The other three numbers are assumptions, see ``DEVICES``.
    """

    name: str
    label: str
    peak_tflops: float
    bandwidth_gb_s: float
    memory_gib: float
    compute_efficiency: float
    bandwidth_efficiency: float
    source: str


@dataclass(frozen=True)
class Model:
    """A dense decoder with grouped-query attention and a gated FFN, as its config.json says."""

    name: str
    label: str
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    source: str
    dtype_bytes: int = 2
    tied_embedding: bool = False

    @property
    def layer_params(self) -> int:
        """Parameters of all layers' matrices; every token multiplies with each of them."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.ffn)

    @property
    def head_params(self) -> int:
        """Parameters of the output matrix; only sampled tokens multiply with it."""
        return self.hidden * self.vocab

    @property
    def weight_bytes(self) -> int:
        """What a step reads of the weights: all but the input embedding, of which it needs rows."""
        return self.dtype_bytes * (self.layer_params + self.head_params)

    @property
    def kv_bytes_per_token(self) -> int:
        return 2 * self.layers * self.kv_heads * self.head_dim * self.dtype_bytes

    @property
    def attention_flops_per_pair(self) -> int:
        """Operations for one new token and one token it attends to: two products of head_dim."""
        return 4 * self.layers * self.heads * self.head_dim

    @property
    def activation_bytes_per_token(self) -> int:
        """Each product's input and output once, norms and residuals: bytes that a token moves."""
        attention = self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return self.layers * self.dtype_bytes * (attention + 6 * self.ffn + 8 * self.hidden)


# Assumptions, not measurements of this repository (the RTX 4090's were held against a measured run,
# docs/simulator.md):
# - shares of peak: GEMMs of the size of a prefill chunk reach 65-80 % of the tensor cores' peak and
#   streaming kernels 80-92 % of the memory bandwidth; a value from the middle of each range;
# - usable memory: the advertised size less about 1 % that CUDA does not hand out (PyTorch reports
#   23.64 GiB on an RTX 4090).
DEVICES: dict[str, Device] = {
    device.name: device
    for device in (
        Device(
            "a100-80g",
            "NVIDIA A100 SXM 80 GB",
            312.0,
            2039.0,
            79.2,
            0.70,
            0.85,
            "NVIDIA A100 Tensor Core GPU data sheet (2021), column 80GB SXM: 312 TFLOPS BF16 "
            "without sparsity, 2,039 GB/s",
        ),
        Device(
            "h100",
            "NVIDIA H100 SXM 80 GB",
            989.0,
            3350.0,
            79.2,
            0.65,
            0.85,
            "NVIDIA H100 Tensor Core GPU data sheet, column SXM: 1,979 TFLOPS BF16 with sparsity, "
            "half of it (989) dense; 3.35 TB/s",
        ),
        Device(
            "h200",
            "NVIDIA H200 SXM 141 GB",
            989.0,
            4800.0,
            139.8,
            0.65,
            0.85,
            "NVIDIA H200 Tensor Core GPU data sheet, column SXM: 1,979 TFLOPS BF16 with sparsity, "
            "half of it (989) dense; 4.8 TB/s",
        ),
        Device(
            "rtx-4090",
            "NVIDIA GeForce RTX 4090",
            165.2,
            1008.0,
            23.5,
            0.80,
            0.90,
            "NVIDIA Ada GPU architecture white paper, appendix A: 165.2 TFLOPS BF16 with FP32 "
            "accumulate, 1,008 GB/s",
        ),
    )
}

MODELS: dict[str, Model] = {
    model.name: model
    for model in (
        Model(
            "qwen3-0.6b",
            "Qwen3-0.6B",
            layers=28,
            hidden=1024,
            ffn=3072,
            heads=16,
            kv_heads=8,
            head_dim=128,
            vocab=151_936,
            source="config.json of Qwen/Qwen3-0.6B",
            tied_embedding=True,
        ),
        Model(
            "qwen2.5-7b",
            "Qwen2.5-7B",
            layers=28,
            hidden=3584,
            ffn=18_944,
            heads=28,
            kv_heads=4,
            head_dim=128,
            vocab=152_064,
            source="config.json of Qwen/Qwen2.5-7B",
        ),
        Model(
            "llama-3.1-8b",
            "Llama-3.1-8B",
            layers=32,
            hidden=4096,
            ffn=14_336,
            heads=32,
            kv_heads=8,
            head_dim=128,
            vocab=128_256,
            source="config.json of meta-llama/Llama-3.1-8B",
        ),
    )
}

MEMORY_SHARE = 0.9
"""vLLM's default gpu_memory_utilization."""

RESERVED_GIB = 1.14
"""Activations, CUDA graphs and context: what is missing between 0.9 x 23.5 GiB less Llama-3.1-8B's
weights and the 2,588 blocks of 16 that vLLM reported on an RTX 4090."""


def find_device(name: str) -> Device:
    """Raises ValueError with the known names."""
    return _find(DEVICES, name, "hardware")


def find_model(name: str) -> Model:
    """Raises ValueError with the known names."""
    return _find(MODELS, name, "model")


def kv_blocks(device: Device, model: Model, block_size: int = 16) -> int:
    """KV blocks that vLLM would find room for; raises ValueError when the weights leave none."""
    room_bytes = (device.memory_gib * MEMORY_SHARE - RESERVED_GIB) * GIB
    room_bytes -= model.weight_bytes
    if not model.tied_embedding:
        room_bytes -= model.dtype_bytes * model.head_params
    blocks = int(room_bytes // (block_size * model.kv_bytes_per_token))
    if blocks < 2:
        raise ValueError(f"{model.label} leaves no room for a KV cache on {device.label}")
    return blocks


def _find(known: dict, name: str, kind: str):
    if name.lower() not in known:
        raise ValueError(f"unknown {kind} {name!r}; known: {', '.join(known)}")
    return known[name.lower()]

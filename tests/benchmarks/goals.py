"""What the project wants of an operator: the least speed relative to each baseline."""

from __future__ import annotations

from collections.abc import Mapping

FP32, BF16 = "F.linear fp32", "F.linear bf16"
EAGER, INDUCTOR = "eager", "inductor"
# The faster of these two.
FASTER = "the faster"
# Parts of the bandwidth of reading, and of copying.
READ, ROOF = "read", "roof"

# The bare matrix products, and memory at its peak.
PRODUCTS, MEMORY = "products", "memory"
# Memory at its peak against Inductor's, and against eager's.
PEAK, EAGER_PEAK = "peak", "eager peak"
# Of attention: PyTorch's, a bare product, and the memory that cannot be saved.
SDPA, PRODUCT, NEEDED = "SDPA", "product", "needed"
# Calls in a microsecond, and PyTorch's smallest.
CALL, ADD = "call", "torch.add"

# Other runtimes.
ORT_FP32, ORT_INT4, LLAMA_CPP = "ort-fp32", "ort-int4", "llama.cpp"
ORT_INT8 = "ort int8"
NBITS = "MatMulNBits"
BNB = "bitsandbytes"
# Of experts: transformers' way by torch's grouped product, and one product of all rows.
GROUPED, DENSE = "grouped_mm", "dense"

_NORMS = ("rms_norm", "add_rms_norm", "layer_norm", "add_layer_norm")


def operator_goals(name: str, case: str, direction: str) -> dict[str, float]:
    """Of an operator that memory bounds."""
    wanted = {FASTER: 0.95}
    if direction == "fwd+bwd":
        if name in _NORMS:
            wanted |= {INDUCTOR: 2.0, ROOF: 0.6}
        if name.startswith("gelu_mul") and case.endswith("tanh"):
            wanted |= {INDUCTOR: 4.0}
        if name == "cross_entropy":
            wanted |= {INDUCTOR: 6.0, EAGER: 2.5}
    return wanted


# Of the geometric mean over all cases.
MEAN_GOALS = {EAGER: 3.0, INDUCTOR: 1.8}


def projection_goals() -> dict[str, float]:
    """Of linear_cross_entropy; MEMORY is how often its own goes into eager's."""
    return {PRODUCTS: 1 / 1.15, MEMORY: 1 / 0.15}


def call_goals(mode: str) -> dict[str, float]:
    """Of a call of few elements, on a machine where `torch.add` takes 1.7 us."""
    return {CALL: 1 / {"no gradient": 4, "fwd": 15}[mode]} if mode != "fwd+bwd" else {}


def has_avx512() -> bool:
    """Whether PyTorch uses AVX-512 here, with which it multiplies bfloat16 fast."""
    import torch

    return torch.backends.cpu.get_cpu_capability().startswith("AVX512")


def qlora_goals(case: str) -> dict[str, float]:
    """Of a step of fine-tuning; bitsandbytes has kernels of its own for AVX-512 alone."""
    return {BNB: 2.0 if has_avx512() else 5.0} if case == "step" else {}


def format_goals(kind: str) -> dict[str, float]:
    """Of one row and a weight in stored blocks: of the formats that most files have."""
    return {READ: 0.75} if kind in ("Q4_K", "Q6_K", "NF4", "MXFP4") else {}


def expert_goals(case: str) -> dict[str, float]:
    """Of the experts of a mixture."""
    return {
        "token": {READ: 0.8},
        "prefill": {DENSE: 0.85},
        "step": {GROUPED: 1.3, EAGER: 10.0},
    }[case]


def script_goals() -> dict[str, float]:
    """Of a small model in TorchScript."""
    return {EAGER: 3.0}


def peer_goals(name: str, rows: int) -> dict[str, float]:
    """Of new tokens a second, by the runtime and the prompts that it continues at once."""
    if name == "ours-fp32" and rows == 1:
        return {ORT_FP32: 1.1}
    if name == "ours-int4-int8":
        return {ORT_INT4: 1.2} | ({LLAMA_CPP: 1.5} if rows == 1 else {})
    return {}


def linear_goals(name: str, rows: int, direction: str = "fwd") -> dict[str, float]:
    """Of a linear layer, by the format of its weight and the rows of x."""
    same_dtype = {"linear fp32": {FP32: 0.98}, "linear bf16": {BF16: 0.98}}.get(name, {})
    return same_dtype | (_forward_goals(name, rows) if direction == "fwd" else {})


def _forward_goals(name: str, rows: int) -> dict[str, float]:
    if name in ("linear bf16", "linear fp32 x bf16"):
        return _bfloat16_goals(rows)
    if name == "linear_int8" and rows == 1:
        return {FP32: 3.5}
    if name == "linear_int4" and rows == 1:
        return {FP32: 6.0, READ: 0.8}
    if name == "linear_int8 dynamic":
        return {READ: 0.8} if rows == 1 else {FP32: 2.0} if rows >= 64 else {}
    if name == "linear_int4 dynamic":
        if rows >= 64:
            return {FP32: 2.0, NBITS: 1.7}
        return {NBITS: 1.2} | ({READ: 0.8} if rows == 1 else {})
    return {}


def _bfloat16_goals(rows: int) -> dict[str, float]:
    if rows == 1:
        return {FP32: 2.0, READ: 0.8}
    # PyTorch has no fast product of bfloat16 without AVX-512: see `--isa avx2`.
    if not has_avx512() and 4 <= rows <= 16:
        return {BF16: 4.0, FP32: 1.0}
    if not has_avx512() and rows >= 64:
        return {FP32: 0.9, BF16: 6.0}
    return {}


def attention_goals(kind: str, dtype: str, direction: str) -> dict[str, float]:
    """Of attention, by the kind of the case.

    NEEDED: how often the peak memory goes into that of the inputs, the result and the gradients.
    """
    if kind == "causal":
        part = {PRODUCT: 0.75 if direction == "fwd" else 0.78} if dtype == "float32" else {}
        return {SDPA: 1.4 if direction == "fwd" else 1.6} | part
    return {
        "window": {SDPA: 4.0},
        "packed": {SDPA: 2.0} if direction == "fwd+bwd" else {},
        "decode": {READ: 0.8, SDPA: 5.0 if dtype == "float32" else 25.0},
        "token": {},
        "small": {SDPA: 0.95},
        "long": {NEEDED: 1 / 1.1},
    }[kind]


def model_goals(case: str, dtype: str) -> dict[str, float]:
    """Of a compiled model with a large vocabulary; PEAK: how often its own goes into Inductor's."""
    if dtype == "bfloat16":
        slow = not has_avx512() and case in ("prefill", "train")  # PyTorch's products
        return {EAGER: 4.0, INDUCTOR: 4.0} if slow else {INDUCTOR: 1.0}
    return {
        "prefill": {INDUCTOR: 1.0},
        "decode": {INDUCTOR: 1.2},
        "train": {INDUCTOR: 1.15, PEAK: 2.0},
    }[case]


def eager_goals(case: str) -> dict[str, float]:
    """Of fused operators without generated code; EAGER_PEAK: how often its own goes into eager's.

    What an operator does not read in its backward is not kept for it.
    """
    return {EAGER_PEAK: 1 / 0.95} if case == "train" else {}


def quantized_goals(case: str) -> dict[str, float]:
    """Of a compiled model whose weights have 4 bits, against one in float32."""
    return {INDUCTOR: 3.0} if case == "decode" else {}


def unknown_goals() -> dict[str, float]:
    """Of a compiled model of which nothing is replaced."""
    return {INDUCTOR: 0.98}


def encoder_goals(mode: str) -> dict[str, float]:
    """Of a sentence encoder."""
    return {"fusewheel": {EAGER: 1.0, INDUCTOR: 1.0}, "int8": {ORT_INT8: 1.2}}.get(mode, {})


def judged(goals: Mapping[str, float], reached: Mapping[str, float]) -> dict[str, bool]:
    """Each goal in words, and whether the speeds reached meet it."""
    return {
        _words(baseline, factor): reached[baseline] >= factor for baseline, factor in goals.items()
    }


def _words(baseline: str, factor: float) -> str:
    if baseline in (READ, ROOF):
        return f"{factor:.0%} of {baseline}"
    if baseline == PRODUCTS:
        return f"{1 / factor:.2f}x the products"
    if baseline == MEMORY:
        return f"{1 / factor:.0%} of eager's memory"
    if baseline == PEAK:
        return f"{1 / factor:.0%} of Inductor's memory"
    if baseline == EAGER_PEAK:
        return f"{1 / factor:.0%} of eager's peak"
    if baseline == PRODUCT:
        return f"{factor:.0%} of the product"
    if baseline == NEEDED:
        return f"{1 / factor:.2f}x the memory needed"
    if baseline == CALL:
        return f"{1 / factor:g} us"
    return f"{factor:g}x {baseline.removeprefix('F.linear ')}"

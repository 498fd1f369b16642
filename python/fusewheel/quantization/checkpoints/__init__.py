"""Linear layers as quantised checkpoints store them: GPTQ, AWQ, bitsandbytes, FP8."""

from fusewheel.quantization.checkpoints.awq import Awq
from fusewheel.quantization.checkpoints.bitsandbytes import BitsAndBytes4
from fusewheel.quantization.checkpoints.fp8 import Fp8
from fusewheel.quantization.checkpoints.gptq import Gptq
from fusewheel.quantization.checkpoints.layers import LinearInt8Zeros, Reordered
from fusewheel.quantization.checkpoints.stored import CheckpointFormat, StoredLinear

FORMATS: dict[str, type[CheckpointFormat]] = {
    "awq": Awq,
    "bitsandbytes_4bit": BitsAndBytes4,
    "fp8": Fp8,
    "gptq": Gptq,
}
"""The formats by the names under which transformers keeps their quantizers."""

__all__ = [
    "FORMATS",
    "Awq",
    "BitsAndBytes4",
    "CheckpointFormat",
    "Fp8",
    "Gptq",
    "LinearInt8Zeros",
    "Reordered",
    "StoredLinear",
]

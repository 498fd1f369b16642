"""Linear layers with 8-bit and 4-bit weights: making them, and models that use them."""

from fusewheel.quantization.block_modules import (
    EmbeddingBlocks,
    LinearBlocks,
    dequantize_blocks,
)
from fusewheel.quantization.block_rounding import quantize_blocks
from fusewheel.quantization.blocks import from_gguf
from fusewheel.quantization.calibration import calibrate
from fusewheel.quantization.experts import GroupedBlocks, QuantizedExperts
from fusewheel.quantization.formats import (
    Int4Weight,
    Int8Weight,
    dequantize_int4,
    dequantize_int8,
    pack_int4,
    unpack_int4,
)
from fusewheel.quantization.gguf.load import load_gguf
from fusewheel.quantization.gguf.repack import Repacked, repack_gguf
from fusewheel.quantization.model import quantize_
from fusewheel.quantization.modules import LinearInt4, LinearInt8
from fusewheel.quantization.report import QuantizationReport, Skip, Swap
from fusewheel.quantization.rounding import quantize_int4, quantize_int8

__all__ = [
    "EmbeddingBlocks",
    "GroupedBlocks",
    "Int4Weight",
    "Int8Weight",
    "LinearBlocks",
    "LinearInt4",
    "LinearInt8",
    "QuantizationReport",
    "QuantizedExperts",
    "Repacked",
    "Skip",
    "Swap",
    "calibrate",
    "dequantize_blocks",
    "dequantize_int4",
    "dequantize_int8",
    "from_gguf",
    "load_gguf",
    "pack_int4",
    "quantize_",
    "quantize_blocks",
    "quantize_int4",
    "quantize_int8",
    "repack_gguf",
    "unpack_int4",
]

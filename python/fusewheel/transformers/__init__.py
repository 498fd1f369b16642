"""Models of the package transformers: fused layers without a compiler, quantised weights."""

from __future__ import annotations

from fusewheel.transformers._int8_cache import int8_cache
from fusewheel.transformers._kernels import register_kernels
from fusewheel.transformers._patch import PatchReport, patch, unpatch
from fusewheel.transformers._quantized import copy_tokenizer, load_quantized, save_quantized
from fusewheel.transformers._register import NAME, register
from fusewheel.transformers._register_quantizers import register_quantizers

__all__ = [
    "NAME",
    "PatchReport",
    "copy_tokenizer",
    "int8_cache",
    "load_quantized",
    "patch",
    "register",
    "register_kernels",
    "register_quantizers",
    "save_quantized",
    "unpatch",
]

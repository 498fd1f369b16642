"""Models of the package transformers: `attn_implementation="fusewheel"`, quantised weights."""

from __future__ import annotations

from fusewheel.transformers._quantized import copy_tokenizer, load_quantized, save_quantized
from fusewheel.transformers._register import NAME, register

__all__ = ["NAME", "copy_tokenizer", "load_quantized", "register", "save_quantized"]

"""Modules with the constructor arguments and state dictionaries of `torch.nn` and transformers."""

from __future__ import annotations

from fusewheel.nn.activation import GELU, GeGLU, SwiGLU
from fusewheel.nn.attention import Attention, RotaryEmbedding
from fusewheel.nn.linear import Linear
from fusewheel.nn.loss import CrossEntropyLoss, LinearCrossEntropyLoss
from fusewheel.nn.norm import LayerNorm, RMSNorm
from fusewheel.quantization.modules import LinearInt4, LinearInt8

__all__ = [
    "GELU",
    "Attention",
    "CrossEntropyLoss",
    "GeGLU",
    "LayerNorm",
    "Linear",
    "LinearCrossEntropyLoss",
    "LinearInt4",
    "LinearInt8",
    "RMSNorm",
    "RotaryEmbedding",
    "SwiGLU",
]

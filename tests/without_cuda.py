"""Operators that the CUDA library has no kernels of yet: PyTorch's operators compute them there."""

from __future__ import annotations

WITHOUT_CUDA = frozenset({"attention_decode", "attention_varlen", "attention_varlen_backward"})

"""Attention for the models of the package transformers: `attn_implementation="fusewheel"`."""

from __future__ import annotations

from fusewheel.transformers._register import NAME, register

__all__ = ["NAME", "register"]

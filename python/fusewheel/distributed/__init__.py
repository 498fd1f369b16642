"""Fused operators on several devices, beside what DTensor does with the rules it was given."""

from __future__ import annotations

from fusewheel.distributed.losses import cross_entropy, linear_cross_entropy

__all__ = ["cross_entropy", "linear_cross_entropy"]

"""Fused operators on several devices, beside what DTensor does with the rules it was given."""

from __future__ import annotations

from fusewheel.distributed._cross_entropy import cross_entropy
from fusewheel.distributed._linear_cross_entropy import linear_cross_entropy

__all__ = ["cross_entropy", "linear_cross_entropy"]

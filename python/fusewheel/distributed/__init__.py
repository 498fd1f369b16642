"""Losses for logits whose classes are spread over devices; sharding rules serve everything else."""

from __future__ import annotations

from fusewheel.distributed._cross_entropy import cross_entropy
from fusewheel.distributed._linear_cross_entropy import linear_cross_entropy

__all__ = ["cross_entropy", "linear_cross_entropy"]

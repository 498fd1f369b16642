"""What needs all devices: losses over classes that are spread over them, and attention over a
sequence that is cut into pieces. Sharding rules serve everything else.
"""

from __future__ import annotations

from fusewheel.distributed._cross_entropy import cross_entropy
from fusewheel.distributed._linear_cross_entropy import linear_cross_entropy
from fusewheel.distributed._ring_attention import ring_attention

__all__ = ["cross_entropy", "linear_cross_entropy", "ring_attention"]

"""SwiGLU behind one projection to both: ``silu(gate) * up`` of the halves of one tensor."""

from __future__ import annotations

from torch.fx import Node

from ..pattern import Context, Match, Pattern, Refuse
from . import silu_mul


def _match(context: Context, node: Node) -> Match | None:
    try:
        found = silu_mul.find_silu_mul(context, node)
    except Refuse:  # which is for the pattern of separate tensors to report
        return None
    return None if found is None else found.match_packed(PATTERN)


PATTERN = Pattern(
    name="silu_mul_packed",
    operator="fusewheel::silu_mul_packed",
    anchors=silu_mul.PATTERN.anchors,
    match=_match,
    order=silu_mul.PATTERN.order - 1,
)

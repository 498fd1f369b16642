"""GEGLU behind one projection to both: ``gelu(gate) * up`` of the halves of one tensor."""

from __future__ import annotations

from torch.fx import Node

from ..pattern import Context, Match, Pattern, Refuse
from . import gelu_mul


def _match(context: Context, node: Node) -> Match | None:
    try:
        found = gelu_mul.find_gelu_mul(node)
    except Refuse:  # which is for the pattern of separate tensors to report
        return None
    return None if found is None else found.match_packed(PATTERN)


PATTERN = Pattern(
    name="gelu_mul_packed",
    operator="fusewheel::gelu_mul_packed",
    anchors=gelu_mul.PATTERN.anchors,
    match=_match,
    order=gelu_mul.PATTERN.order - 1,
)

"""GEGLU with a packed tensor: ``gelu(gate) * up``, where gate and up are its halves."""

from __future__ import annotations

from torch.fx import Node

from fusewheel.compiler.ir.pattern import Context, Match, Pattern, PaysAbove, Refuse
from fusewheel.compiler.patterns import gelu_mul


def _match(context: Context, node: Node) -> Match | None:
    try:
        found = gelu_mul.find_gelu_mul(node)
    except Refuse:  # the pattern gelu_mul reports the reason
        return None
    return None if found is None else found.match_packed(PATTERN)


PATTERN = Pattern(
    name="gelu_mul_packed",
    operator="fusewheel::gelu_mul_packed",
    anchors=gelu_mul.PATTERN.anchors,
    match=_match,
    order=gelu_mul.PATTERN.order - 1,
    pays_above=PaysAbove(inductor=9216, inductor_training=9216),
)

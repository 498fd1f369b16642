"""SwiGLU with a packed tensor: ``silu(gate) * up``, where gate and up are its halves."""

from __future__ import annotations

from torch.fx import Node

from fusewheel.compiler.ir.pattern import Context, Match, Pattern, PaysAbove, Refuse
from fusewheel.compiler.patterns import silu_mul


def _match(context: Context, node: Node) -> Match | None:
    try:
        found = silu_mul.find_silu_mul(context, node)
    except Refuse:  # the pattern silu_mul reports the reason
        return None
    return None if found is None else found.match_packed(PATTERN)


PATTERN = Pattern(
    name="silu_mul_packed",
    operator="fusewheel::silu_mul_packed",
    anchors=silu_mul.PATTERN.anchors,
    match=_match,
    order=silu_mul.PATTERN.order - 1,
    pays_above=PaysAbove(inductor=9216, inductor_training=9216),
)

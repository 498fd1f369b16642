"""GEGLU: ``gelu(gate) * up``."""

from __future__ import annotations

from torch.fx import Node

from fusewheel.compiler.ir.canonical import view
from fusewheel.compiler.ir.metadata import shape_of
from fusewheel.compiler.ir.pattern import Context, Match, Pattern, PaysAbove, Refuse, users_of
from fusewheel.compiler.patterns import gelu
from fusewheel.compiler.read.gating import Gated, gated


def find_gelu_mul(node: Node) -> Gated | None:
    """The product around a gelu; None if the node is not a gelu or does not multiply a tensor.

    Raises:
        Refuse: if the operator does not compute the product.
    """
    try:
        found = gelu.find_gelu(node)
    except Refuse:  # the pattern gelu reports the reason
        return None
    if found is None or not any(map(_is_product, users_of(found.root))):
        return None
    return gated("gelu", found.root, found.x, found.interior, found.tanh)


def _is_product(node: Node) -> bool:
    found = view(node)
    return (
        found is not None and found.op == "mul" and all(shape_of(a) is not None for a in found.args)
    )


def _match(context: Context, node: Node) -> Match | None:
    found = find_gelu_mul(node)
    return None if found is None else found.match(PATTERN)


PATTERN = Pattern(
    name="gelu_mul",
    operator="fusewheel::gelu_mul",
    anchors=gelu.PATTERN.anchors,
    match=_match,
    order=gelu.PATTERN.order - 1,
    pays_above=PaysAbove(inductor=4608, inductor_training=4608),
)

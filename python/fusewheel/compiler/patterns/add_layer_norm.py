"""A residual addition and the layer norm of the sum: ``h = x + residual; y = layer_norm(h)``."""

from __future__ import annotations

from torch.fx import Node

from fusewheel.compiler.ir.pattern import Builder, Context, Match, Pattern, PaysAbove, Refuse
from fusewheel.compiler.patterns import layer_norm
from fusewheel.compiler.read.residual import addends


def _match(context: Context, node: Node) -> Match | None:
    try:
        norm = layer_norm.find(node)
    except Refuse:  # the pattern layer_norm reports the reason
        return None
    both = None if norm is None else addends(norm.x)
    if norm is None or both is None:
        return None

    def build(builder: Builder) -> list[Node]:
        arguments = *both, norm.weight, norm.bias, norm.eps
        results = builder.call(PATTERN.overload(), *arguments)
        return [builder.item(results, 1), builder.item(results, 0)]

    return Match(
        inputs=(*both, *norm.parameters),
        roots=(norm.x, norm.root),
        interior=norm.interior,
        build=build,
        absorbed=norm.absorbed,
        saved=frozenset({norm.x}),
    )


PATTERN = Pattern(
    name="add_layer_norm",
    operator="fusewheel::add_layer_norm",
    anchors=layer_norm.PATTERN.anchors,
    match=_match,
    order=layer_norm.PATTERN.order - 1,
    pays_above=PaysAbove(inductor=4608, inductor_training=4608),
)

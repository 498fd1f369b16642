"""A residual addition and the RMSNorm of the sum: ``h = x + residual; y = rms_norm(h)``."""

from __future__ import annotations

from torch.fx import Node

from fusewheel.compiler.ir.pattern import Builder, Context, Match, Pattern, PaysAbove, Refuse
from fusewheel.compiler.patterns import rms_norm
from fusewheel.compiler.read.residual import addends


def _match(context: Context, node: Node) -> Match | None:
    try:
        norm = rms_norm.find(node)
    except Refuse:  # the pattern rms_norm reports the reason
        return None
    both = None if norm is None else addends(norm.x)
    if norm is None or both is None:
        return None

    def build(builder: Builder) -> list[Node]:
        arguments = *both, norm.weight, norm.eps, int(norm.cast)
        results = builder.call(PATTERN.overload(), *arguments)
        return [builder.item(results, 1), builder.item(results, 0)]

    return Match(
        inputs=(*both, norm.weight),
        roots=(norm.x, norm.root),
        interior=norm.interior,
        build=build,
        absorbed=norm.absorbed,
        saved=frozenset({norm.x}),
    )


PATTERN = Pattern(
    name="add_rms_norm",
    operator="fusewheel::add_rms_norm",
    anchors=rms_norm.PATTERN.anchors,
    match=_match,
    order=rms_norm.PATTERN.order - 2,
    pays_above=PaysAbove(inductor=4608, inductor_training=4608),
)

"""Attention that a model writes out, ``softmax(query @ key^T * scale + mask) @ value``: becomes
PyTorch's attention, which does not materialise all scores.

What it computes for a query that sees no key stands in `fusewheel.compiler.read.written`.
"""

from __future__ import annotations

import torch
from torch.fx import Node

from fusewheel.compiler.ir.canonical import view
from fusewheel.compiler.ir.metadata import same_sizes, shape_of, tensor_of
from fusewheel.compiler.ir.pattern import Builder, Context, Match, Pattern
from fusewheel.compiler.read.scores import is_extended
from fusewheel.compiler.read.written import written_attention


def _match(context: Context, node: Node) -> Match | None:
    found = view(node)
    rank = len(shape_of(node) or ())
    if found is None or rank < 2 or found.attrs["dim"] != rank - 1 or is_extended(node):
        return None  # PyTorch's attention has no soft cap and no sinks
    written = written_attention(context, node)
    if written is None:
        return None
    scale = written.scores.scale

    def attend(builder: Builder, tensors: list[Node], mask: Node | None) -> Node:
        attention = torch.nn.functional.scaled_dot_product_attention
        return builder.call(attention, *tensors, mask, scale=scale)

    return written.match(attend)


def _cost(match: Match) -> str | None:
    """It is faster if PyTorch's attention does not materialise the scores."""
    tensors = [tensor for node in match.inputs if (tensor := tensor_of(node)) is not None]
    if {tensor.device.type for tensor in tensors} != {"cpu"}:
        return "it is only replaced on a CPU"
    if torch.float64 in {tensor.dtype for tensor in tensors}:
        return "PyTorch's attention materialises the scores too in float64"
    features = [(shape_of(node) or (0,))[-1] for node in (match.inputs[0], *match.roots)]
    if not same_sizes(*((size,) for size in features)):
        return "PyTorch's attention materialises the scores too if values have other features"
    return None


PATTERN = Pattern(
    name="softmax_attention",
    operator="aten::scaled_dot_product_attention",
    anchors=frozenset({"softmax"}),
    match=_match,
    order=-2,
    cost=_cost,
)

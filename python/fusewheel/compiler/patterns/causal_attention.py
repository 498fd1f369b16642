"""Attention with a mask that hides all later keys and nothing else: passes ``is_causal=True``.

PyTorch's attention then reads no mask, and skips what is hidden: nearly half of the products of a
long sequence.
"""

from __future__ import annotations

import math

import torch
from torch.fx import Node

from fusewheel.compiler.ir.metadata import dtype_of, tensor_of
from fusewheel.compiler.ir.pattern import Builder, Context, Match, Pattern, Refuse, require
from fusewheel.compiler.read.attention import attention_of
from fusewheel.compiler.read.masks import Mask


def _match(context: Context, node: Node) -> Match | None:
    attention = attention_of(context, node)
    if attention is None or attention.tensor is None:
        return None
    mask, dtype = attention.mask, dtype_of(node)
    if mask.hidden is None or (mask.upper is None and not mask.other):
        return None  # a bias, or a mask that shows later keys
    bounds = mask.lower, mask.upper, mask.padding, mask.other
    require(bounds == (None, 0, (), ()), f"the mask is not known to be causal alone: {mask.kind}")
    _check_hidden(mask, dtype)
    require(attention.dropout == 0, "dropout may be active: other random numbers would be drawn")
    tensors = attention.query, attention.key, attention.value
    options = {"scale": attention.scale, "enable_gqa": attention.grouped}

    def build(builder: Builder) -> list[Node]:
        return [builder.call(PATTERN.overload(), *tensors, None, 0.0, True, **options)]

    # Autocast casts the operands of both calls in the same way.
    return Match(tensors, (node,), frozenset(), build, widened=frozenset({node}))


def _check_hidden(mask: Mask, dtype: torch.dtype | None) -> None:
    """Refuse if a hidden key could keep a weight, because the number added to it is too small."""
    if mask.hidden is None or dtype is None or mask.hidden == -math.inf:
        return
    if dtype == torch.float16 or mask.hidden > torch.finfo(dtype).min:
        raise Refuse(f"hidden scores get {mask.hidden:g} added, which may not hide them fully")


def _cost(match: Match) -> str | None:
    tensor = tensor_of(match.inputs[0])
    if tensor is None or tensor.device.type != "cpu":
        return "it is only replaced on a CPU"
    return None


PATTERN = Pattern(
    name="causal_attention",
    operator="aten::scaled_dot_product_attention",
    anchors=frozenset({"attention"}),
    match=_match,
    cost=_cost,
)

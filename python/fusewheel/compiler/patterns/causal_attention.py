"""Attention whose mask hides every later key and nothing else, told so instead of given the mask.

PyTorch's attention then skips what is hidden, nearly half of the products of a long sequence, and
reads no mask.
"""

from __future__ import annotations

import math

import torch
from torch.fx import Node

from ..attention import attention_of
from ..masks import Mask
from ..metadata import dtype_of, tensor_of
from ..pattern import Builder, Context, Match, Pattern, Refuse, require


def _match(context: Context, node: Node) -> Match | None:
    attention = attention_of(context, node)
    if attention is None or attention.tensor is None:
        return None
    mask, dtype = attention.mask, dtype_of(node)
    if mask.hidden is None or (mask.upper is None and not mask.other):
        return None  # a bias, or one that lets later keys be seen
    bounds = mask.lower, mask.upper, mask.padding, mask.other
    require(bounds == (None, 0, (), ()), f"the mask is not known to be causal alone: {mask.kind}")
    _check_hidden(mask, dtype)
    require(attention.dropout == 0, "dropout may be active: other random numbers would be drawn")
    tensors = attention.query, attention.key, attention.value
    options = {"scale": attention.scale, "enable_gqa": attention.grouped}

    def build(builder: Builder) -> list[Node]:
        return [builder.call(PATTERN.overload(), *tensors, None, 0.0, True, **options)]

    # Autocast casts the operands of the same call in the same way.
    return Match(tensors, (node,), frozenset(), build, widened=frozenset({node}))


def _check_hidden(mask: Mask, dtype: torch.dtype | None) -> None:
    """Nothing of a hidden score is left where no other is as small as the sum with it."""
    if mask.hidden is None or dtype is None or mask.hidden == -math.inf:
        return
    if dtype == torch.float16 or mask.hidden > torch.finfo(dtype).min:
        raise Refuse(f"hidden scores get {mask.hidden:g} added, which may leave something of them")


def _cost(match: Match) -> str | None:
    tensor = tensor_of(match.inputs[0])
    if tensor is None or tensor.device.type != "cpu":
        return "it is replaced only on a CPU so far"
    return None


PATTERN = Pattern(
    name="causal_attention",
    operator="aten::scaled_dot_product_attention",
    anchors=frozenset({"attention"}),
    match=_match,
    cost=_cost,
)

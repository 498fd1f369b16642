"""What a call of PyTorch's attention computes, for patterns that replace it and for reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from torch.fx import Node

from fusewheel.compiler.ir.canonical import operands, view
from fusewheel.compiler.ir.metadata import Size, same_sizes, shape_of
from fusewheel.compiler.ir.pattern import Context
from fusewheel.compiler.read.masks import NO_MASK, Mask, read_mask


@dataclass(frozen=True)
class Attention:
    """``softmax(query @ key^T * scale + mask) @ value``.

    Attributes:
        node: the call of scaled_dot_product_attention.
        query: ``[..., heads, queries, features]``.
        key: ``[..., key heads, keys, features]``.
        value: ``[..., key heads, keys, value features]``.
        tensor: the mask that is passed; None if there is none.
        mask: what the mask and ``is_causal`` hide.
        dropout: the probability of dropout.
        scale: the factor of the scores; None for ``features ** -0.5``.
        grouped: whether several query heads share a key head.
    """

    node: Node
    query: Node
    key: Node
    value: Node
    tensor: Node | None
    mask: Mask
    dropout: Any
    scale: Any
    grouped: bool

    @property
    def shapes(self) -> str:
        """The shapes in words."""
        keys = (shape_of(self.key) or ())[-2:-1]
        return f"query {_text(shape_of(self.query))}, keys {_text(keys)}"


def attention_of(context: Context, node: Node) -> Attention | None:
    """The attention at a node; None if the node does not call scaled_dot_product_attention."""
    found = view(node)
    if found is None or found.op != "attention":
        return None
    query, key, value = cast("tuple[Node, Node, Node]", found.args[:3])
    tensor = found.args[3]
    queries, keys = (shape_of(query) or (0, 0))[-2], (shape_of(key) or (0, 0))[-2]
    mask = read_mask(context, tensor, node, queries, keys) if isinstance(tensor, Node) else NO_MASK
    if found.attrs["is_causal"]:
        mask = mask.both(Mask(upper=0))  # aligned at the first query and the first key
    return Attention(
        node,
        query,
        key,
        value,
        tensor if isinstance(tensor, Node) else None,
        mask,
        found.attrs["dropout_p"],
        found.attrs["scale"],
        bool(found.attrs["enable_gqa"]),
    )


def repeated(node: object) -> tuple[Node, tuple[Node, ...]] | None:
    """The tensor ``[B, H, S, D]`` that is repeated to ``[B, H * G, S, D]``, and the nodes that
    repeat it.
    """
    wide = (operands(node, "reshape") or (None,))[0]
    narrow = (operands(wide, "expand") or (None,))[0]
    found = view(narrow)
    if found is None or found.op != "unsqueeze" or found.attrs["dim"] != 2:
        return None
    source = found.args[0]
    before, between, after = map(shape_of, (source, wide, node))
    if before is None or between is None or after is None or len(before) != 4 or len(after) != 4:
        return None
    batch, heads, length, size = before
    if len(between) != 5 or not isinstance(groups := between[2], int):
        return None
    if not same_sizes(between, (batch, heads, groups, length, size)):
        return None
    if not same_sizes(after, (batch, heads * groups, length, size)):
        return None
    nodes = tuple(n for n in (node, wide, narrow) if isinstance(n, Node))
    return (source, nodes) if isinstance(source, Node) else None


def _text(sizes: tuple[Size, ...] | None) -> str:
    return "?" if sizes is None else " x ".join(map(str, sizes))

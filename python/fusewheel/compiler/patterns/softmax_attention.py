"""Attention written by hand, ``softmax(query @ key^T * scale + mask) @ value``, as PyTorch's own.

That is one operator, which never holds the scores of all queries and keys. Two things need care
where a query sees no key. Scores of -inf make its row NaN by hand and 0 in PyTorch's attention:
unless the mask shows that it does not happen, such rows are made NaN, with their gradients. A large
negative number makes its row the mean of all values, in both; but not in float16, where the sums of
scores and mask are rounded first, and not with the same gradients. So a mask whose values are not
known, as that in a buffer, is no obstacle where -inf is filled in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch.fx import Node

from ..canonical import view
from ..masks import read_hidden, read_mask
from ..metadata import Size, dtype_of, requires_grad, same_size, same_sizes, shape_of, tensor_of
from ..pattern import Builder, Context, Match, Pattern, Refuse, require
from ..precision import COMPUTED
from ..scores import Operand, Scores, is_weights, scores_of, weighted_by

_aten = torch.ops.aten


@dataclass(frozen=True)
class _Masking:
    """How a mask is handed over.

    Attributes:
        tensor: what is added to the scores, or where they are filled; None without a mask.
        filled: what they are filled with, None if the tensor is added.
        poisoned: whether rows that are hidden as a whole become NaN.
        stopped: whether such rows get no gradients, but for those of the values.
    """

    tensor: Node | None
    filled: float | None = None
    poisoned: bool = False
    stopped: bool = False

    def attend(self, builder: Builder, tensors: list[Node], scale: float) -> Node:
        """Attention with this mask; `tensors` are query, key and value."""
        attention = torch.nn.functional.scaled_dot_product_attention
        mask, dtype = self.tensor, dtype_of(tensors[0])
        if mask is None:
            return builder.call(attention, *tensors, None, scale=scale)
        while len(shape_of(mask) or ()) not in (2, 4):  # the ranks of which there is a fast kernel
            mask = builder.call(_aten.unsqueeze.default, mask, 0)
        rows = self._hidden_rows(builder, mask)
        if self.filled == -math.inf:
            mask = builder.call(torch.logical_not, mask)
            if rows is not None and self.stopped:
                mask = builder.call(torch.logical_or, mask, rows)  # finite, until it is replaced
        elif self.filled is not None:
            mask = builder.call(torch.where, mask, self.filled, 0.0)
            mask = builder.call(_aten.to.dtype, mask, dtype)
        result = builder.call(attention, *tensors, mask, scale=scale)
        if rows is None:
            return result
        if not self.stopped:
            # A product with 1, or NaN, reaches all gradients.
            factor = builder.call(torch.where, rows, math.nan, 1.0)
            return builder.call(torch.mul, result, builder.call(_aten.to.dtype, factor, dtype))
        # By hand, every value has a part in such a row and gets NaN as its gradient.
        some = builder.call(torch.any, rows, -2, True)
        factor = builder.call(torch.where, some, math.nan, 0.0)
        values = builder.call(torch.mean, tensors[2], -2, True)
        spoilt = builder.call(torch.mul, values, builder.call(_aten.to.dtype, factor, dtype))
        return builder.call(torch.where, rows, spoilt, result)

    def _hidden_rows(self, builder: Builder, mask: Node) -> Node | None:
        if not self.poisoned:
            return None
        if self.filled is None:
            mask = builder.call(torch.eq, mask, -math.inf)
        return builder.call(torch.all, mask, -1, True)


def _match(context: Context, node: Node) -> Match | None:
    found = view(node)
    rank = len(shape_of(node) or ())
    if found is None or rank < 2 or found.attrs["dim"] != rank - 1:
        return None
    scores = scores_of(node) if is_weights(node) else None
    if scores is None:
        return None
    weighted = weighted_by(node)
    tensors = [scores.query, scores.key, weighted.value]
    dtype = _checked(tensors, scores, node)
    masking = _masking(context, scores, node, dtype)

    def build(builder: Builder) -> list[Node]:
        arranged = [_arranged(builder, tensor, rank) for tensor in tensors]
        result = masking.attend(builder, arranged, scores.scale)
        if rank == 3:
            result = builder.call(_aten.squeeze.dim, result, 0)
        if weighted.order is not None:
            result = builder.call(torch.permute, result, weighted.order)
        return [result]

    inputs = [tensor.node for tensor in tensors]
    if masking.tensor is not None:
        inputs.append(masking.tensor)
    return Match(
        inputs=tuple(dict.fromkeys(inputs)),
        roots=(weighted.root,),
        interior=weighted.interior | frozenset(scores.interior),
        build=build,
        absorbed=frozenset(scores.absorbed),
        widened=frozenset({node}),
    )


def _sizes(operand: Operand) -> tuple[Size, ...]:
    shape = shape_of(operand.node) or ()
    return shape if operand.order is None else tuple(shape[d] for d in operand.order)


def _checked(tensors: list[Operand], scores: Scores, softmax: Node) -> torch.dtype:
    """The dtype of all tensors, if PyTorch's attention takes them."""
    query, key, value = map(_sizes, tensors)
    rank = len(query)
    require(
        rank in (3, 4) and len(key) == len(value) == rank,
        "query, key and value are not [batch, heads, length, features]",
    )
    leading = [sizes[:-2] for sizes in (query, key, value)]
    require(
        all(same_sizes(leading[0], other) for other in leading[1:])
        and same_size(key[-2], value[-2]),
        "query, key and value are broadcast",
    )
    dtypes = {dtype_of(tensor.node) for tensor in tensors}
    dtype = dtype_of(scores.product)
    if len(dtypes) != 1 or dtype is None or dtype not in COMPUTED:
        raise Refuse(f"query, key and value are {', '.join(sorted(map(str, dtypes)))}")
    wide = dtype_of(softmax)
    require(
        wide in (dtype, torch.float32) and not (wide != dtype and dtype == torch.float64),
        f"softmax is computed in {wide}",
    )
    return dtype


def _masking(context: Context, scores: Scores, softmax: Node, dtype: torch.dtype) -> _Masking:
    shape = shape_of(scores.product) or ()
    queries, keys = shape[-2:]
    if scores.filled is not None:
        tensor, value = scores.filled
        filled = _filling(value, dtype)
        require(dtype_of(tensor) == torch.bool, "the mask is not boolean")
        mask = read_hidden(context, tensor, softmax, queries, keys)
        if mask.shows_every_query_a_key(queries, keys):
            # Nothing is left of a hidden key, whichever of the two it was filled with.
            return _Masking(tensor, -math.inf)
        if filled == -math.inf:
            # By hand, what is filled in stops the gradients.
            return _Masking(tensor, filled, poisoned=True, stopped=requires_grad(softmax))
        _check_rounding(dtype)
        _check_gradients(softmax)
        return _Masking(tensor, filled)
    if scores.added is None:
        return _Masking(None)
    tensor = scores.added
    require(dtype_of(tensor) == dtype, f"the mask is {dtype_of(tensor)}, query and key are {dtype}")
    require(not requires_grad(tensor), "the mask requires a gradient")
    mask = read_mask(context, tensor, softmax, queries, keys)
    if mask.shows_every_query_a_key(queries, keys):
        return _Masking(tensor)
    if mask.hidden != -math.inf:
        _check_rounding(dtype)
        _check_gradients(softmax)  # the sum of the exponentials is lost in the large number
    finite = mask.hidden is not None and math.isfinite(mask.hidden)
    return _Masking(tensor, poisoned=not finite)


def _filling(value: float, dtype: torch.dtype) -> float:
    """-inf, or the least number of the dtype, which no score is below."""
    least = torch.finfo(dtype).min
    require(
        value in (-math.inf, least, torch.finfo(torch.float32).min),
        f"hidden scores are {value:g}, which other scores may be below",
    )
    return -math.inf if value == -math.inf else least


def _check_rounding(dtype: torch.dtype) -> None:
    require(
        dtype != torch.float16,
        "the mask may hide all keys of a query, and float16 rounds what is added to its scores",
    )


def _check_gradients(softmax: Node) -> None:
    require(
        not requires_grad(softmax),
        "the mask may hide all keys of a query, of which PyTorch's attention has other gradients",
    )


def _arranged(builder: Builder, operand: Operand, rank: int) -> Node:
    """The tensor as [batch, heads, length, features]."""
    node = operand.node
    if operand.order is not None:
        node = builder.call(torch.permute, node, operand.order)
    return builder.call(_aten.unsqueeze.default, node, 0) if rank == 3 else node


def _cost(match: Match) -> str | None:
    """By memory traffic: it pays where the scores are not held, as on a CPU in these dtypes."""
    tensors = [tensor for node in match.inputs[:3] if (tensor := tensor_of(node)) is not None]
    if any(tensor.device.type != "cpu" for tensor in tensors):
        return "it is replaced only on a CPU so far"
    if any(tensor.dtype == torch.float64 for tensor in tensors):
        return "PyTorch's attention holds the scores as well in float64"
    features = [(shape_of(node) or (0,))[-1] for node in (match.inputs[0], *match.roots)]
    if not same_sizes(*((size,) for size in features)):
        return "PyTorch's attention holds the scores as well if values have other features"
    return None


PATTERN = Pattern(
    name="softmax_attention",
    operator="aten::scaled_dot_product_attention",
    anchors=frozenset({"softmax"}),
    match=_match,
    order=-1,
    cost=_cost,
)

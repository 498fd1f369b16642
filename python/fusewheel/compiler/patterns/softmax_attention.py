"""Attention that a model writes out, ``softmax(query @ key^T * scale + mask) @ value``: becomes
PyTorch's attention, which does not materialise all scores.

Two cases need care if a query sees no key:

* The hidden scores are -inf. Its row is NaN when written out, and 0 in PyTorch's attention. Unless
  the mask shows that no such row exists, the rewrite makes it NaN again, with its gradients. So the
  values of the mask need not be known.
* The hidden scores are a large negative number. Its row is the mean of all values in both. The
  gradients differ, and in float16 the sums of scores and mask are rounded differently.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch.fx import Node

from fusewheel.compiler.ir.canonical import view
from fusewheel.compiler.ir.metadata import (
    Size,
    dtype_of,
    requires_grad,
    same_size,
    same_sizes,
    shape_of,
    tensor_of,
)
from fusewheel.compiler.ir.pattern import Builder, Context, Match, Pattern, Refuse, require
from fusewheel.compiler.read.masks import read_hidden, read_mask
from fusewheel.compiler.read.precision import COMPUTED
from fusewheel.compiler.read.scores import Operand, Scores, is_weights, scores_of, weighted_by

_aten = torch.ops.aten


@dataclass(frozen=True)
class _Masking:
    """How the mask is passed to PyTorch's attention.

    Attributes:
        tensor: what is added to the scores, or the condition of a fill; None without a mask.
        filled: the number that scores are filled with; None if the tensor is added.
        poisoned: whether fully hidden rows become NaN.
        stopped: whether fully hidden rows pass gradients to the values only.
    """

    tensor: Node | None
    filled: float | None = None
    poisoned: bool = False
    stopped: bool = False

    def attend(self, builder: Builder, tensors: list[Node], scale: float) -> Node:
        """Emit attention with this mask; `tensors` are query, key and value."""
        attention = torch.nn.functional.scaled_dot_product_attention
        mask, dtype = self.tensor, dtype_of(tensors[0])
        if mask is None:
            return builder.call(attention, *tensors, None, scale=scale)
        while len(shape_of(mask) or ()) not in (2, 4):  # the fast kernel takes these ranks
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
            # A factor of 1 or NaN applies to all gradients too.
            factor = builder.call(torch.where, rows, math.nan, 1.0)
            return builder.call(torch.mul, result, builder.call(_aten.to.dtype, factor, dtype))
        # Written out, all values have a part in such a row and get NaN as their gradient.
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
            # A hidden key has no weight, whichever of the two numbers fills its score.
            return _Masking(tensor, -math.inf)
        if filled == -math.inf:
            # Written out, filling stops the gradients.
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
        _check_gradients(softmax)  # adding the large number loses the scores
    finite = mask.hidden is not None and math.isfinite(mask.hidden)
    return _Masking(tensor, poisoned=not finite)


def _filling(value: float, dtype: torch.dtype) -> float:
    """-inf or the least number of the dtype, because no score is less than these."""
    least = torch.finfo(dtype).min
    require(
        value in (-math.inf, least, torch.finfo(torch.float32).min),
        f"hidden scores are filled with {value:g}, and other scores may be less",
    )
    return -math.inf if value == -math.inf else least


def _check_rounding(dtype: torch.dtype) -> None:
    require(
        dtype != torch.float16,
        "the mask may hide all keys of a query, and float16 rounds such a row differently",
    )


def _check_gradients(softmax: Node) -> None:
    require(
        not requires_grad(softmax),
        "the mask may hide all keys of a query, and PyTorch's attention has other gradients then",
    )


def _arranged(builder: Builder, operand: Operand, rank: int) -> Node:
    """The tensor as [batch, heads, length, features]."""
    node = operand.node
    if operand.order is not None:
        node = builder.call(torch.permute, node, operand.order)
    return builder.call(_aten.unsqueeze.default, node, 0) if rank == 3 else node


def _cost(match: Match) -> str | None:
    """It is faster if PyTorch's attention does not materialise the scores."""
    tensors = [tensor for node in match.inputs[:3] if (tensor := tensor_of(node)) is not None]
    if any(tensor.device.type != "cpu" for tensor in tensors):
        return "it is only replaced on a CPU"
    if any(tensor.dtype == torch.float64 for tensor in tensors):
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
    order=-1,
    cost=_cost,
)

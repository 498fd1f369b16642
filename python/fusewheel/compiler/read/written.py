"""Attention that a model writes out, ``softmax(query @ key^T * scale + mask) @ value``, and how a
fused attention replaces it, which does not materialise all scores.

Two cases need care if a query sees no key:

* The hidden scores are -inf. Its row is NaN when written out, and 0 in a fused attention. Unless
  the mask shows that no such row exists, the rewrite makes it NaN again, with its gradients. So the
  values of the mask need not be known.
* The hidden scores are a large negative number. Its row is the mean of all values in both. The
  gradients differ, and in float16 the sums of scores and mask are rounded differently.

With sinks, such a row is 0 in both.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch.fx import Node

from fusewheel.compiler.ir.metadata import (
    dtype_of,
    requires_grad,
    same_size,
    same_sizes,
    shape_of,
)
from fusewheel.compiler.ir.pattern import Builder, Context, Match, Refuse, require
from fusewheel.compiler.read.masks import NO_MASK, Mask, read_hidden, read_mask
from fusewheel.compiler.read.precision import COMPUTED
from fusewheel.compiler.read.scores import (
    Operand,
    Scores,
    Weighted,
    is_weights,
    scores_of,
    weighted_by,
)

_aten = torch.ops.aten
# Emits attention, given the builder, its query, key and value, and the mask.
Attend = Callable[[Builder, list[Node], Node | None], Node]


@dataclass(frozen=True)
class Masking:
    """How the mask is passed to a fused attention.

    Attributes:
        tensor: what is added to the scores, or the condition of a fill; None without a mask.
        mask: what it hides.
        filled: the number that scores are filled with; None if the tensor is added.
        poisoned: whether fully hidden rows become NaN.
        stopped: whether fully hidden rows pass gradients to the values only.
    """

    tensor: Node | None
    mask: Mask = NO_MASK
    filled: float | None = None
    poisoned: bool = False
    stopped: bool = False

    def attend(self, builder: Builder, tensors: list[Node], attend: Attend) -> Node:
        """Emit attention with this mask; `tensors` are query, key and value."""
        mask, dtype = self.tensor, dtype_of(tensors[0])
        if mask is None:
            return attend(builder, tensors, None)
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
        result = attend(builder, tensors, mask)
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


@dataclass(frozen=True)
class Written:
    """Attention written out around one softmax.

    Attributes:
        softmax: the softmax.
        scores: its argument.
        weighted: the product behind it.
        masking: how the mask is passed to a fused attention.
    """

    softmax: Node
    scores: Scores
    weighted: Weighted
    masking: Masking

    @property
    def tensors(self) -> list[Operand]:
        """Query, key and value."""
        return [self.scores.query, self.scores.key, self.weighted.value]

    def match(self, attend: Attend, absorbed: frozenset[Node] = frozenset()) -> Match:
        """The match that replaces it by what `attend` emits.

        `attend` gets query, key and value as ``[batch, heads, length, features]``.
        """
        rank = len(shape_of(self.softmax) or ())
        weighted, scores = self.weighted, self.scores

        def build(builder: Builder) -> list[Node]:
            arranged = [_arranged(builder, tensor, rank) for tensor in self.tensors]
            result = self.masking.attend(builder, arranged, attend)
            if rank == 3:
                result = builder.call(_aten.squeeze.dim, result, 0)
            if weighted.order is not None:
                result = builder.call(torch.permute, result, weighted.order)
            return [result]

        nodes = (*(tensor.node for tensor in self.tensors), scores.sinks, self.masking.tensor)
        return Match(
            inputs=tuple(dict.fromkeys(node for node in nodes if node is not None)),
            roots=(weighted.root,),
            interior=weighted.interior | frozenset(scores.interior),
            build=build,
            absorbed=frozenset(scores.absorbed) | absorbed,
            widened=frozenset({self.softmax}),
            saved=frozenset({weighted.root}),
        )


def written_attention(context: Context, softmax: Node) -> Written | None:
    """The attention around a softmax over the last dimension; None if there is no product.

    Raises:
        Refuse: if a fused attention computes something else.
    """
    scores = scores_of(softmax) if is_weights(softmax) else None
    if scores is None:
        return None
    weighted = weighted_by(softmax, scores.sinks is not None)
    dtype = _checked([scores.query, scores.key, weighted.value], scores, softmax)
    return Written(softmax, scores, weighted, _masking(context, scores, softmax, dtype))


def _checked(tensors: list[Operand], scores: Scores, softmax: Node) -> torch.dtype:
    """The dtype of all tensors, if a fused attention takes them."""
    query, key, value = (tensor.sizes for tensor in tensors)
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


def _masking(context: Context, scores: Scores, softmax: Node, dtype: torch.dtype) -> Masking:
    shape = shape_of(scores.product) or ()
    queries, keys = shape[-2:]
    filled: float | None = None
    if scores.filled is not None:
        tensor, value = scores.filled
        filled = _filling(value, dtype)
        require(dtype_of(tensor) == torch.bool, "the mask is not boolean")
        mask = read_hidden(context, tensor, softmax, queries, keys)
        if mask.shows_every_query_a_key(queries, keys):
            # A hidden key has no weight, whichever of the two numbers fills its score.
            return Masking(tensor, mask, -math.inf)
        mask = replace(mask, hidden=filled)
    elif scores.added is not None:
        tensor = scores.added
        own = dtype_of(tensor)
        require(own == dtype, f"the mask is {own}, query and key are {dtype}")
        require(not requires_grad(tensor), "the mask requires a gradient")
        mask = read_mask(context, tensor, softmax, queries, keys)
        if mask.shows_every_query_a_key(queries, keys):
            return Masking(tensor, mask)
    else:
        return Masking(None)
    finite = mask.hidden is not None and math.isfinite(mask.hidden)
    if scores.sinks is not None:
        # A row without a key is 0, unless its sink is -inf too.
        require(finite, "the mask may hide all keys of a query with -inf")
        return Masking(tensor, mask, filled)
    if mask.hidden != -math.inf:
        _check_rounding(dtype)
        _check_gradients(softmax)  # adding the large number loses the scores
    # Written out, filling with -inf stops the gradients.
    stopped = filled == -math.inf and requires_grad(softmax)
    return Masking(tensor, mask, filled, poisoned=not finite, stopped=stopped)


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
        "the mask may hide all keys of a query, and a fused attention has other gradients then",
    )


def _arranged(builder: Builder, operand: Operand, rank: int) -> Node:
    """The tensor as [batch, heads, length, features]."""
    node = operand.node
    if operand.order is not None:
        node = builder.call(torch.permute, node, operand.order)
    return builder.call(_aten.unsqueeze.default, node, 0) if rank == 3 else node

"""Reads calls of loss functions over classes, and computes them from the losses of single rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.fx import Node

from fusewheel.compiler.ir.canonical import rank_of, view
from fusewheel.compiler.ir.metadata import dtype_of, shape_of
from fusewheel.compiler.ir.pattern import Builder, Refuse, require
from fusewheel.compiler.ir.spellings.losses import REDUCTIONS
from fusewheel.compiler.read.precision import COMPUTED, number

_aten = torch.ops.aten
ANCHORS = frozenset({"cross_entropy", "nll_loss"})


@dataclass(frozen=True)
class LossCall:
    """A call of a loss function.

    Attributes:
        root: the node of the call.
        logits: its argument, with the classes in dimension 1.
        target: int64 classes; the shape of `logits` without dimension 1.
        weight: a factor for each class.
        of_logits: whether it takes logits, and not logarithms of probabilities.
    """

    root: Node
    logits: Node
    target: Node
    weight: Node | None
    ignore_index: int
    reduction: str
    label_smoothing: float
    of_logits: bool

    def classes(self, builder: Builder) -> Node:
        """The targets in one dimension."""
        one = rank_of(self.target) == 1
        return self.target if one else builder.call(_aten.flatten.using_ints, self.target)

    def finish(self, builder: Builder, losses: Node, target: Node, summed: bool) -> Node:
        """The value of the root, computed from the losses of the rows or from their sum."""
        result = losses
        if self.reduction == "none" and rank_of(self.target) != 1:
            result = builder.call(_aten.view_as.default, losses, self.target)
        if self.reduction != "none" and not summed:
            result = builder.call(_aten.sum.default, losses)
        if self.reduction == "mean":
            result = self._mean(builder, result, target)
        dtype = dtype_of(self.root)
        return result if dtype_of(result) == dtype else builder.call(_aten.to.dtype, result, dtype)

    def _mean(self, builder: Builder, total: Node, target: Node) -> Node:
        """`total` divided by the weight of the rows that are not ignored; NaN with a zero gradient
        if all are.
        """
        kept = builder.call(_aten.ne.Scalar, target, self.ignore_index)
        divisor = builder.call(_aten.sum.default, kept)
        none = builder.call(_aten.eq.Scalar, divisor, 0)
        if self.weight is not None:
            size = (shape_of(self.weight) or (0,))[0]
            index = builder.call(_aten.clamp.default, target, 0, int(size) - 1)
            own = builder.call(_aten.index_select.default, self.weight, 0, index)
            own = builder.call(_aten.to.dtype, own, dtype_of(total))
            divisor = builder.call(_aten.sum.default, builder.call(_aten.mul.Tensor, own, kept))
        divisor = builder.call(_aten.masked_fill.Scalar, divisor, none, 1)
        mean = builder.call(_aten.div.Tensor, total, divisor)
        return builder.call(_aten.masked_fill.Scalar, mean, none, float("nan"))


def loss_of(node: Node) -> LossCall:
    """The loss function that an anchor calls.

    Raises:
        Refuse: if the operators cannot compute it.
    """
    found = view(node)
    assert found is not None
    (logits, target), options = found.args, found.attrs
    of_logits = found.op == "cross_entropy"
    dtype, rank = dtype_of(target), rank_of(logits) or 0
    if not isinstance(logits, Node) or not isinstance(target, Node) or dtype is None:
        raise Refuse("logits or targets are not tensors")
    require(not dtype.is_floating_point, "the targets are probabilities, not classes")
    require(dtype == torch.int64, f"the targets are {dtype}")
    require(rank > 1, "the logits are a single row")
    require(dtype_of(logits) in COMPUTED, f"{dtype_of(logits)} is not supported")
    weight = options["weight"]
    if weight is not None:
        size = (shape_of(weight) or (None,))[0]
        require(isinstance(size, int), "the number of class weights is symbolic")
    ignored, smoothing = number(options["ignore_index"]), number(options.get("label_smoothing", 0))
    reduction = options["reduction"]
    if ignored is None or smoothing is None or reduction not in REDUCTIONS:
        raise Refuse("ignore_index, label_smoothing or reduction is not a constant")
    return LossCall(node, logits, target, weight, int(ignored), reduction, smoothing, of_logits)

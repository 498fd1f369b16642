"""Loss functions over classes, read off their calls, and how to compute them of rows of losses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import Node

from .canonical import View, rank_of, spell, view
from .metadata import dtype_of, shape_of
from .pattern import Builder, Refuse, require
from .precision import COMPUTED, number

_aten = torch.ops.aten
_REDUCTIONS = ("none", "mean", "sum")


def _loss(op: str) -> Any:
    def build(node: Node, bound: dict[str, Any]) -> View | None:
        reduction = bound.pop("reduction")
        if isinstance(reduction, int) and 0 <= reduction < len(_REDUCTIONS):
            reduction = _REDUCTIONS[reduction]
        if bound.pop("size_average", None) is not None or bound.pop("reduce", None) is not None:
            return None  # deprecated, and another meaning of the reduction
        operands = (bound.pop("input"), bound.pop("target"))
        return View(node, op, operands, {**bound, "reduction": reduction})

    return build


def _log_softmax(node: Node, bound: dict[str, Any]) -> View | None:
    rank, dim = rank_of(bound["input"]), bound["dim"]
    if rank is None or not isinstance(dim, int) or not -rank <= dim < rank:
        return None
    return View(node, "log_softmax", (bound["input"],), {"dim": dim % rank})


_OPTIONS = {"weight": None, "size_average": None, "ignore_index": -100, "reduce": None}
# fmt: off
spell("cross_entropy", "input target weight size_average ignore_index reduce reduction"
      " label_smoothing", functions=(F.cross_entropy,), build=_loss("cross_entropy"),
      defaults={**_OPTIONS, "reduction": "mean", "label_smoothing": 0.0})
spell("cross_entropy", "input target weight reduction ignore_index label_smoothing",
      functions=(torch._C._nn.cross_entropy_loss, _aten.cross_entropy_loss.default),
      build=_loss("cross_entropy"), defaults={"weight": None, "reduction": 1, "ignore_index": -100,
      "label_smoothing": 0.0})
spell("nll_loss", "input target weight size_average ignore_index reduce reduction",
      functions=(F.nll_loss,), build=_loss("nll_loss"), defaults={**_OPTIONS, "reduction": "mean"})
spell("nll_loss", "input target weight reduction ignore_index", functions=(_aten.nll_loss.default,
      torch._C._nn.nll_loss_nd, _aten.nll_loss_nd.default),
      build=_loss("nll_loss"), defaults={"weight": None, "reduction": 1, "ignore_index": -100})
spell("log_softmax", "input dim _stacklevel dtype", functions=(F.log_softmax,),
      defaults={"_stacklevel": 3, "dtype": None}, build=_log_softmax)
spell("log_softmax", "input dim dtype", functions=(torch.log_softmax, _aten.log_softmax.int,
      torch.special.log_softmax), methods="log_softmax", defaults={"dtype": None},
      build=_log_softmax)
# fmt: on

ANCHORS = frozenset({"cross_entropy", "nll_loss"})


@dataclass(frozen=True)
class Loss:
    """A call of a loss function.

    Attributes:
        root: the node of the call.
        logits: what it takes, with the classes in dimension 1.
        target: int64 classes, the shape of `logits` without that dimension.
        weight: a factor for each class.
        of_logits: whether it takes logits; logarithms of probabilities otherwise.
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
        """The value of the root, from the losses of the rows or their sum."""
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
        """`total` over the weight of the rows that count; NaN without any, its gradient zero."""
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


def loss_of(node: Node) -> Loss:
    """The loss function that an anchor calls.

    Raises:
        Refuse: if the operators do not compute it.
    """
    found = view(node)
    assert found is not None
    (logits, target), options = found.args, found.attrs
    of_logits = found.op == "cross_entropy"
    dtype, rank = dtype_of(target), rank_of(logits)
    if not isinstance(logits, Node) or not isinstance(target, Node) or dtype is None:
        raise Refuse("logits or targets are not tensors")
    require(not dtype.is_floating_point, "the targets are probabilities, not classes")
    require(dtype == torch.int64, f"the targets are {dtype}")
    require((rank or 0) > 1, "the logits are a single row")
    require(dtype_of(logits) in COMPUTED, f"{dtype_of(logits)} is not supported")
    weight = options["weight"]
    if weight is not None:
        size = (shape_of(weight) or (None,))[0]
        require(isinstance(size, int), "the number of class weights is symbolic")
    ignored, smoothing = number(options["ignore_index"]), number(options.get("label_smoothing", 0))
    reduction = options["reduction"]
    if ignored is None or smoothing is None or reduction not in _REDUCTIONS:
        raise Refuse("ignore_index, label_smoothing or reduction is not a constant")
    return Loss(node, logits, target, weight, int(ignored), reduction, smoothing, of_logits)

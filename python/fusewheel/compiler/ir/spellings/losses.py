"""Spellings of loss functions and of the logarithm of softmax."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import Node

from fusewheel._torch.builtins import nn
from fusewheel.compiler.ir.canonical import View, rank_of, spell

_aten = torch.ops.aten
REDUCTIONS = ("none", "mean", "sum")


def _loss(op: str) -> Any:
    def build(node: Node, bound: dict[str, Any]) -> View | None:
        reduction = bound.pop("reduction")
        if isinstance(reduction, int) and 0 <= reduction < len(REDUCTIONS):
            reduction = REDUCTIONS[reduction]
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
      functions=(nn("cross_entropy_loss"), _aten.cross_entropy_loss.default),
      build=_loss("cross_entropy"), defaults={"weight": None, "reduction": 1, "ignore_index": -100,
      "label_smoothing": 0.0})
spell("nll_loss", "input target weight size_average ignore_index reduce reduction",
      functions=(F.nll_loss,), build=_loss("nll_loss"), defaults={**_OPTIONS, "reduction": "mean"})
spell("nll_loss", "input target weight reduction ignore_index", functions=(_aten.nll_loss.default,
      nn("nll_loss_nd"), _aten.nll_loss_nd.default),
      build=_loss("nll_loss"), defaults={"weight": None, "reduction": 1, "ignore_index": -100})
spell("log_softmax", "input dim _stacklevel dtype", functions=(F.log_softmax,),
      defaults={"_stacklevel": 3, "dtype": None}, build=_log_softmax)
spell("log_softmax", "input dim dtype", functions=(torch.log_softmax, _aten.log_softmax.int,
      torch.special.log_softmax), methods="log_softmax", defaults={"dtype": None},
      build=_log_softmax)
# fmt: on

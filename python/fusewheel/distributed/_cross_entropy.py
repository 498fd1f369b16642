"""Cross entropy of logits whose classes are spread over devices, without gathering them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from fusewheel.distributed._placements import (
    as_on_one_device,
    check_no_gradient,
    distributed,
    matrix,
    on_rows,
    reduced,
    row_placements,
    spread_loss,
    vocabulary_dimension,
)
from fusewheel.distributed._vocabulary import Rows, VocabularyLoss, logits_gradient, rows_of
from fusewheel.ops.choices import Reduction
from fusewheel.ops.loss._checks import check_cross_entropy, check_rows_of_logits, check_target
from fusewheel.ops.loss.cross_entropy import check_reduction, reduction_of
from fusewheel.ops.loss.cross_entropy import cross_entropy as gathered


def cross_entropy(
    logits: DTensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float = 0.0,
    *,
    size_average: bool | None = None,
    reduce: bool | None = None,
) -> Tensor:
    """Cross entropy of logits that are cut along the classes, as a column-parallel layer returns
    them. Each device reads its own classes, and the devices exchange three numbers for each row.

    `fusewheel.cross_entropy` has the formula. It runs instead if the logits are whole or if a
    device has no classes. The logits have first derivatives only.

    Source: Shoeybi et al., "Megatron-LM" (2019) for the parallel loss;
    `torch.nn.functional.cross_entropy`.

    Args:
        logits: `[..., C]`, cut along the classes over one dimension of the mesh. Over the others
            they may be whole, or cut along another dimension. float32, bfloat16, float16 or
            float64.
        target: int64 `[...]`: classes, or `ignore_index`. A tensor that is not distributed must be
            the same on every device.
        weight: `[C]`, the factor of each class, with the rule of `target`; it gets no gradient.
            Default None, which means ones.
        ignore_index: rows with this target have no loss and no gradient; default -100.
        reduction: `"mean"` (default), `"sum"` or `"none"`.
        label_smoothing: as for `fusewheel.cross_entropy`; default 0. Otherwise there are two more
            passes over the logits.
        z_loss: as for `fusewheel.cross_entropy`; default 0.
        softcap: as for `fusewheel.cross_entropy`; default 0.
        size_average: deprecated by PyTorch, default None. If it or `reduce` is given, `reduction`
            is ignored: False means `"sum"`.
        reduce: deprecated by PyTorch, default None. False means the reduction `"none"`.

    Returns:
        The loss in the dtype of `logits`: a scalar, or for `"none"` a tensor `[...]` that is cut
        like the rows of `logits`.

    Raises:
        ValueError: `reduction` is not one of the three.
        RuntimeError: as for `fusewheel.cross_entropy`; also if `weight` requires a gradient.
    """
    reduction = reduction_of(size_average, reduce, reduction)
    check_reduction("cross_entropy", reduction)
    _check(logits, target, weight, label_smoothing, softcap)
    at = vocabulary_dimension(logits, logits.dim() - 1)
    options = ignore_index, label_smoothing, z_loss, softcap
    if at is None:
        mesh = logits.device_mesh
        loss = gathered(
            matrix(logits),
            distributed(target, mesh).flatten(),
            None if weight is None else distributed(weight, mesh),
            ignore_index=ignore_index,
            reduction=reduction,
            label_smoothing=label_smoothing,
            z_loss=z_loss,
            softcap=softcap,
        )
        return loss.view(target.shape) if reduction == "none" else loss
    check_no_gradient("cross_entropy", "weight", weight)
    rows = row_placements(logits)
    classes = on_rows(target, logits.device_mesh, rows)
    spread = spread_loss("cross_entropy", logits, logits.shape[-1], at, weight, options)
    local = logits.to_local(grad_placements=logits.placements)
    values = _CrossEntropy.apply(matrix(local), classes.flatten(), spread)
    return reduced(values, classes, target.shape, logits, rows, spread, reduction)


def _check(
    logits: Tensor, target: Tensor, weight: Tensor | None, label_smoothing: float, softcap: float
) -> None:
    """Raises the errors of `fusewheel.cross_entropy`."""
    op = "cross_entropy"
    check_target(op, target, list(logits.shape[:-1]), "the rows of logits")
    rows, classes, factors = as_on_one_device(logits, target, weight)
    check_rows_of_logits(matrix(rows), classes.flatten(), factors)
    check_cross_entropy(op, label_smoothing, softcap)


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, loss: VocabularyLoss) -> Tensor:
        values, rows = rows_of(logits, target, loss)
        ctx.loss = loss
        ctx.save_for_backward(logits, *vars(rows).values())
        return values

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        logits, *rows = ctx.saved_tensors
        return logits_gradient(grad, logits, Rows(*rows), ctx.loss), None, None

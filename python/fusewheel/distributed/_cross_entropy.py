"""Cross entropy of logits whose classes are spread over devices, which no device gathers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from fusewheel.distributed._placements import (
    check_target,
    distributed,
    on_rows,
    reduced,
    row_placements,
    spread_loss,
    vocabulary_dimension,
)
from fusewheel.distributed._vocabulary import Loss, Rows, logits_gradient, rows_of
from fusewheel.ops.cross_entropy import check_reduction
from fusewheel.ops.cross_entropy import cross_entropy as gathered


def cross_entropy(
    logits: DTensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float = 0.0,
) -> Tensor:
    """`fusewheel.cross_entropy` of logits that a column-parallel layer leaves where they are: cut
    along the classes. Each device reads its own, and three numbers a row are exchanged.

    Logits that are whole, or whose classes do not reach every device, go to
    `fusewheel.cross_entropy`. First derivatives of the logits only.

    Source: Shoeybi et al., "Megatron-LM" (2019), for the parallel loss; formula and options:
    `fusewheel.cross_entropy`.

    Args:
        logits: `[..., C]`, cut along the classes over one dimension of the mesh, over the others
            whole or cut along any other dimension.
        target: int64 `[...]`, classes or `ignore_index`; a tensor that is not distributed is the
            same on every device.
        weight: `[C]`, the factor of each class, likewise; it gets no gradient.
        ignore_index: see `fusewheel.cross_entropy`, as all that follows.
        reduction: `"none"`, `"sum"` or `"mean"`.
        label_smoothing: as there. More than 0 costs two more passes over the logits.
        z_loss: as there.
        softcap: as there.

    Returns:
        The loss in the dtype of `logits`: `[...]`, cut as the rows of `logits` are, or a scalar.

    Raises:
        ValueError: `reduction` is not one of the three, or a shape does not fit.
        RuntimeError: as `fusewheel.cross_entropy`; `weight` requires a gradient.
    """
    check_reduction("cross_entropy", reduction)
    check_target("cross_entropy", target, logits)
    at = vocabulary_dimension(logits, logits.dim() - 1)
    options = ignore_index, label_smoothing, z_loss, softcap
    if at is None:
        mesh = logits.device_mesh
        loss = gathered(
            logits.flatten(0, -2),
            distributed(target, mesh).flatten(),
            None if weight is None else distributed(weight, mesh),
            *(ignore_index, reduction, label_smoothing, z_loss, softcap),
        )
        return loss.view(target.shape) if reduction == "none" else loss
    rows = row_placements(logits)
    classes = on_rows(target, logits.device_mesh, rows)
    spread = spread_loss(logits, logits.shape[-1], at, weight, options)
    local = logits.to_local(grad_placements=logits.placements)
    values = _CrossEntropy.apply(local.flatten(0, -2), classes.flatten(), spread)
    return reduced(values, classes, target.shape, logits, rows, spread, reduction)


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, loss: Loss) -> Tensor:
        values, rows = rows_of(logits, target, loss, ctx.needs_input_grad[0])
        ctx.loss = loss
        ctx.save_for_backward(logits, *vars(rows).values())
        return values

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        logits, *rows = ctx.saved_tensors
        return logits_gradient(grad, logits, Rows(*rows), ctx.loss), None, None

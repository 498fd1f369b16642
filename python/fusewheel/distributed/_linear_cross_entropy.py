"""A projection and its cross entropy, where the classes of its weight are spread over devices."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from fusewheel._rows import wide
from fusewheel.distributed._placements import (
    check_target,
    distributed,
    on_rows,
    reduced,
    row_placements,
    spread_loss,
    vocabulary_dimension,
)
from fusewheel.distributed._vocabulary import Loss, logits_gradient, rows_of
from fusewheel.ops.cross_entropy import check_reduction
from fusewheel.ops.linear_cross_entropy import linear_cross_entropy as gathered

ROWS = 1024
"""Rows whose logits exist at a time in `linear_cross_entropy`."""


def linear_cross_entropy(
    x: DTensor,
    weight: DTensor,
    target: Tensor,
    bias: DTensor | None = None,
    class_weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float = 0.0,
) -> Tensor:
    """`fusewheel.linear_cross_entropy` with a weight that is cut along the classes: no device has
    the logits of more than a few rows, and of these only its own classes.

    Where the weight is whole, or its classes do not reach every device,
    `fusewheel.linear_cross_entropy` runs. First derivatives only.

    Args:
        x: `[..., D]`; gathered over the dimension of the mesh that cuts the classes.
        weight: `[C, D]`, cut along the classes over one dimension of the mesh, whole over others.
        target: int64 `[...]`, as for `cross_entropy`.
        bias: `[C]`, distributed as `weight`; none by default.
        class_weight: `[C]`, as for `cross_entropy`; it gets no gradient.
        ignore_index: see `fusewheel.linear_cross_entropy`, as all that follows.
        reduction: `"none"`, `"sum"` or `"mean"`.
        label_smoothing: as there.
        z_loss: as there.
        softcap: as there.

    Returns:
        The loss in the dtype of `x`: `[...]`, cut as the rows of `x` are, or a scalar.

    Raises:
        ValueError: `reduction` is not one of the three, or a shape does not fit.
        RuntimeError: as `fusewheel.linear_cross_entropy`; `class_weight` requires a gradient.
    """
    check_reduction("linear_cross_entropy", reduction)
    check_target("linear_cross_entropy", target, x)
    at = vocabulary_dimension(weight, 0)
    options = ignore_index, label_smoothing, z_loss, softcap
    mesh = x.device_mesh
    if at is None:
        return gathered(
            x,
            weight,
            distributed(target, mesh),
            bias,
            None if class_weight is None else distributed(class_weight, mesh),
            ignore_index,
            reduction,
            label_smoothing,
            z_loss,
            softcap,
        )
    rows = row_placements(x)
    rows[at] = Replicate()
    classes = on_rows(target, mesh, rows)
    spread = spread_loss(weight, weight.shape[0], at, class_weight, options)
    # What a device gives to a gradient: its classes to that of x, its rows to that of the weight.
    of_x: list[Placement] = [Partial() if i == at else p for i, p in enumerate(rows)]
    of_weight: list[Placement] = [
        Shard(0) if i == at else Partial() if p.is_shard() else p for i, p in enumerate(rows)
    ]
    held: list[Placement] = [Shard(0) if i == at else Replicate() for i in range(mesh.ndim)]
    local = x.redistribute(placements=rows).to_local(grad_placements=of_x).flatten(0, -2)
    own, own_bias = (
        None if t is None else t.redistribute(placements=held).to_local(grad_placements=of_weight)
        for t in (weight, bias)
    )
    summed = reduction != "none"
    values = _LinearCrossEntropy.apply(local, own, own_bias, classes.flatten(), spread, summed)
    return reduced(values, classes, target.shape, x, rows, spread, reduction)


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        target: Tensor,
        loss: Loss,
        summed: bool,
    ) -> Tensor:
        needs = any(ctx.needs_input_grad[:3])
        ctx.loss, ctx.summed = loss, summed
        # The gradient of a sum does not depend on what comes; that of single losses does.
        ones = wide(x.new_ones(x.shape[:1])) if summed and needs else None
        values, gradients = _chunks(x, weight, bias, target, loss, ones)
        ctx.save_for_backward(x, weight, bias, target, *gradients)
        return values

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, weight, bias, target, *gradients = ctx.saved_tensors
        if ctx.summed:
            # Of a sum: the same for every row.
            gradients = [g * grad[0] if grad.numel() > 0 else g for g in gradients]
        else:
            gradients = _chunks(x, weight, bias, target, ctx.loss, grad)[1]
        of_x, of_weight, of_bias = gradients
        return (
            of_x.to(x.dtype),
            of_weight.to(weight.dtype),
            None if bias is None else of_bias.to(bias.dtype),
            *(None, None, None),
        )


def _chunks(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    loss: Loss,
    grad: Tensor | None,
) -> tuple[Tensor, list[Tensor]]:
    """The loss of each row, and the gradients of x, weight and bias if that of the loss is given.

    The last two are summed in the dtype of computation.
    """
    ops = torch.ops.fusewheel
    values = []
    of_x = []
    of_weight, of_bias = wide(torch.zeros_like(weight)), wide(weight.new_zeros(weight.shape[0]))
    for at in range(0, x.shape[0], ROWS):
        chunk = slice(at, at + ROWS)
        logits = ops.linear(x[chunk], weight, bias)
        value, rows = rows_of(logits, target[chunk], loss, grad is not None)
        values.append(value)
        if grad is not None:
            unit = logits_gradient(grad[chunk], logits, rows, loss)
            of_x.append(ops.linear_backward_x(unit, weight))
            of_weight += ops.linear_backward_weight(unit, x[chunk], of_weight)
            of_bias += wide(unit).sum(0)
    if not values:
        return wide(x.new_zeros(0)), [torch.zeros_like(x), of_weight, of_bias]
    return torch.cat(values), [torch.cat(of_x) if of_x else x.new_zeros(0), of_weight, of_bias]

"""A linear layer and its cross entropy, if the classes of its weight are spread over devices."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

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
from fusewheel.distributed._vocabulary import VocabularyLoss, logits_gradient, rows_of
from fusewheel.ops._checks import check_weight_dtype
from fusewheel.ops._rows import wide
from fusewheel.ops.choices import Reduction
from fusewheel.ops.loss._checks import check_linear_cross_entropy, check_target
from fusewheel.ops.loss.cross_entropy import check_reduction
from fusewheel.ops.loss.linear_cross_entropy import linear_cross_entropy as gathered

ROWS = 1024
"""The number of rows whose logits `linear_cross_entropy` computes at a time."""


def linear_cross_entropy(
    x: DTensor,
    weight: DTensor,
    target: Tensor,
    bias: DTensor | None = None,
    class_weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float = 0.0,
) -> Tensor:
    """A linear layer and its cross entropy, with a weight that is cut along the classes. Each
    device computes the logits of its own classes, for 1024 rows at a time.

    `fusewheel.linear_cross_entropy` has the formula. It runs instead if the weight is whole or if a
    device has no classes. There are first derivatives only.

    Source: Shoeybi et al., "Megatron-LM" (2019) for the parallel loss;
    `torch.nn.functional.cross_entropy` of `torch.nn.functional.linear`.

    Args:
        x: `[..., D]`; float32, bfloat16, float16 or float64. It is gathered over the dimension of
            the mesh that cuts the classes.
        weight: `[C, D]`, cut along the classes over one dimension of the mesh, whole over the
            others.
        target: int64 `[...]`: classes, or `ignore_index`. A tensor that is not distributed must be
            the same on every device.
        bias: `[C]`, distributed like `weight`; default None.
        class_weight: `[C]`, the factor of each class, with the rule of `target`; it gets no
            gradient. Default None, which means ones.
        ignore_index: rows with this target have no loss and no gradient; default -100.
        reduction: `"mean"` (default), `"sum"` or `"none"`.
        label_smoothing: as for `fusewheel.linear_cross_entropy`; default 0.
        z_loss: as for `fusewheel.linear_cross_entropy`; default 0.
        softcap: as for `fusewheel.linear_cross_entropy`; default 0.

    Returns:
        The loss in the dtype of `x`: a scalar, or for `"none"` a tensor `[...]` that is cut like
        the rows of `x`.

    Raises:
        ValueError: `reduction` is not one of the three.
        RuntimeError: as for `fusewheel.linear_cross_entropy`; also if `class_weight` requires a
            gradient.
    """
    check_reduction("linear_cross_entropy", reduction)
    options = ignore_index, label_smoothing, z_loss, softcap
    _check(x, weight, target, bias, class_weight, options)
    at = vocabulary_dimension(weight, 0)
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
    check_no_gradient("linear_cross_entropy", "class_weight", class_weight)
    rows = row_placements(x)
    rows[at] = Replicate()
    classes = on_rows(target, mesh, rows)
    spread = spread_loss("linear_cross_entropy", weight, weight.shape[0], at, class_weight, options)
    # A device's part of a gradient: of x the part of its classes, of the weight that of its rows.
    of_x: list[Placement] = [Partial() if i == at else p for i, p in enumerate(rows)]
    of_weight: list[Placement] = [
        Shard(0) if i == at else Partial() if p.is_shard() else p for i, p in enumerate(rows)
    ]
    held: list[Placement] = [Shard(0) if i == at else Replicate() for i in range(mesh.ndim)]
    local = x.redistribute(placements=rows).to_local(grad_placements=of_x)
    own, own_bias = (
        None if t is None else t.redistribute(placements=held).to_local(grad_placements=of_weight)
        for t in (weight, bias)
    )
    summed = reduction != "none"
    values = _LinearCrossEntropy.apply(
        matrix(local), own, own_bias, classes.flatten(), spread, summed
    )
    return reduced(values, classes, target.shape, x, rows, spread, reduction)


def _check(
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None,
    class_weight: Tensor | None,
    options: tuple[int, float, float, float],
) -> None:
    """Raises the errors of `fusewheel.linear_cross_entropy`."""
    op = "linear_cross_entropy"
    check_target(op, target, list(x.shape[:-1]), "all but the last dimension of x")
    found = as_on_one_device(x, weight, target, bias, class_weight)
    rows, projection, classes, offset, factors = found
    check_linear_cross_entropy(
        op, matrix(rows), projection, classes.flatten(), offset, factors, *options
    )
    for name, tensor in (("weight", weight), ("bias", bias)):
        if tensor is not None:
            check_weight_dtype(op, (name, tensor), ("x", x))


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        target: Tensor,
        loss: VocabularyLoss,
        summed: bool,
    ) -> Tensor:
        needs = any(ctx.needs_input_grad[:3])
        ctx.loss, ctx.summed = loss, summed
        # The gradients of a summed loss can be computed now and scaled in the backward; those of
        # single losses cannot.
        ones = wide(x.new_ones(x.shape[:1])) if summed and needs else None
        values, gradients = _chunks(x, weight, bias, target, loss, ones)
        ctx.save_for_backward(*(gradients if summed else (x, weight, bias, target)))
        ctx.dtypes = [None if t is None else t.dtype for t in (x, weight, bias)]
        return values

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        if ctx.summed:
            # The gradient of a sum is the same for every row.
            gradients = [g * grad[0] if grad.numel() > 0 else g for g in ctx.saved_tensors]
        else:
            x, weight, bias, target = ctx.saved_tensors
            gradients = _chunks(x, weight, bias, target, ctx.loss, grad)[1]
        found = (
            None if dtype is None else g.to(dtype)
            for g, dtype in zip(gradients, ctx.dtypes, strict=True)
        )
        return *found, None, None, None


def _chunks(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    loss: VocabularyLoss,
    grad: Tensor | None,
) -> tuple[Tensor, list[Tensor]]:
    """The loss of each row, and, given its gradient, the gradients of x, weight and bias.

    The gradients of weight and bias are summed in the dtype of computation.
    """
    ops = torch.ops.fusewheel
    values = []
    of_x = []
    of_weight, of_bias = wide(torch.zeros_like(weight)), wide(weight.new_zeros(weight.shape[0]))
    for at in range(0, x.shape[0], ROWS):
        chunk = slice(at, at + ROWS)
        logits = ops.linear(x[chunk], weight, bias)
        value, rows = rows_of(logits, target[chunk], loss)
        values.append(value)
        if grad is not None:
            unit = logits_gradient(grad[chunk], logits, rows, loss)
            of_x.append(ops.linear_backward_x(unit, weight))
            of_weight += ops.linear_backward_weight(unit, x[chunk], of_weight)
            of_bias += wide(unit).sum(0)
    if not values:
        return wide(x.new_zeros(0)), [torch.zeros_like(x), of_weight, of_bias]
    return torch.cat(values), [torch.cat(of_x) if of_x else x.new_zeros(0), of_weight, of_bias]

"""Losses of logits whose classes are spread over devices, which no device gathers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from fusewheel._rows import wide
from fusewheel.distributed._vocabulary import Loss, Rows, divisor, logits_gradient, rows_of
from fusewheel.ops.cross_entropy import check_reduction
from fusewheel.ops.cross_entropy import cross_entropy as gathered_cross_entropy
from fusewheel.ops.linear_cross_entropy import (
    linear_cross_entropy as gathered_linear_cross_entropy,
)

ROWS = 1024
"""Rows whose logits exist at a time in `linear_cross_entropy`."""


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
    _check_target("cross_entropy", target, logits)
    at = _vocabulary_dimension(logits, logits.dim() - 1)
    options = ignore_index, label_smoothing, z_loss, softcap
    if at is None:
        mesh = logits.device_mesh
        loss = gathered_cross_entropy(
            logits.flatten(0, -2),
            _distributed(target, mesh).flatten(),
            None if weight is None else _distributed(weight, mesh),
            *(ignore_index, reduction, label_smoothing, z_loss, softcap),
        )
        return loss.view(target.shape) if reduction == "none" else loss
    rows = _row_placements(logits)
    classes = _on_rows(target, logits.device_mesh, rows)
    spread = _loss(logits, logits.shape[-1], at, weight, options)
    local = logits.to_local(grad_placements=logits.placements)
    values = _CrossEntropy.apply(local.flatten(0, -2), classes.flatten(), spread)
    return _reduced(values, classes, target.shape, logits, rows, spread, reduction)


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
    _check_target("linear_cross_entropy", target, x)
    at = _vocabulary_dimension(weight, 0)
    options = ignore_index, label_smoothing, z_loss, softcap
    mesh = x.device_mesh
    if at is None:
        return gathered_linear_cross_entropy(
            x,
            weight,
            _distributed(target, mesh),
            bias,
            None if class_weight is None else _distributed(class_weight, mesh),
            ignore_index,
            reduction,
            label_smoothing,
            z_loss,
            softcap,
        )
    rows = _row_placements(x)
    rows[at] = Replicate()
    classes = _on_rows(target, mesh, rows)
    spread = _loss(weight, weight.shape[0], at, class_weight, options)
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
    return _reduced(values, classes, target.shape, x, rows, spread, reduction)


def _check_target(op: str, target: Tensor, x: Tensor) -> None:
    if target.shape != x.shape[:-1]:
        raise ValueError(
            f"{op}: target must have shape {list(x.shape[:-1])}, got {list(target.shape)}"
        )


def _vocabulary_dimension(tensor: DTensor, classes: int) -> int | None:
    """The dimension of the mesh that alone cuts the classes, if every device gets some."""
    found = [i for i, p in enumerate(tensor.placements) if p.is_shard(classes)]
    if len(found) != 1:
        return None
    pieces = tensor.device_mesh.size(found[0])
    each = -(-tensor.shape[classes] // pieces)
    return found[0] if each * (pieces - 1) < tensor.shape[classes] else None


def _row_placements(x: DTensor) -> list[Placement]:
    """How a tensor without the last dimension of `x` lies beside it."""
    last = x.dim() - 1
    return [p if p.is_shard() and not p.is_shard(last) else Replicate() for p in x.placements]


def _distributed(tensor: Tensor, mesh: DeviceMesh) -> DTensor:
    if isinstance(tensor, DTensor):
        return tensor
    return DTensor.from_local(tensor, mesh, [Replicate()] * mesh.ndim, run_check=False)


def _on_rows(target: Tensor, mesh: DeviceMesh, rows: list[Placement]) -> Tensor:
    return _distributed(target, mesh).redistribute(placements=rows).to_local()


def _loss(
    tensor: DTensor,
    classes: int,
    at: int,
    weight: Tensor | None,
    options: tuple[int, float, float, float],
) -> Loss:
    mesh = tensor.device_mesh
    if weight is not None:
        if weight.requires_grad:
            raise RuntimeError("cross_entropy: the weights of distributed classes get no gradient")
        weight = wide(weight.full_tensor() if isinstance(weight, DTensor) else weight)
    start = mesh.get_local_rank(at) * -(-classes // mesh.size(at))
    return Loss(mesh.get_group(at), start, classes, weight, *options)


def _reduced(
    values: Tensor,
    classes: Tensor,
    shape: torch.Size,
    like: DTensor,
    rows: list[Placement],
    loss: Loss,
    reduction: str,
) -> Tensor:
    mesh, dtype = like.device_mesh, like.dtype
    if reduction == "none":
        values = values.to(dtype).view(classes.shape)
        stride = torch.empty(shape, device="meta").stride()
        return DTensor.from_local(values, mesh, rows, run_check=False, shape=shape, stride=stride)

    def summed(of_device: Tensor) -> Tensor:
        sums = [Partial() if p.is_shard() else p for p in rows]
        return DTensor.from_local(of_device, mesh, sums, run_check=False).redistribute(
            placements=[Replicate()] * mesh.ndim
        )

    total = summed(values.sum())
    if reduction == "mean":
        total = total / summed(divisor(classes.flatten(), loss))
    return total.to(dtype)


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

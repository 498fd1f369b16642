"""x + residual, and its layer norm"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fusewheel.dispatch.autograd import reference_gradients
from fusewheel.dispatch.operator import Arguments, BadInput, Make, Operator
from fusewheel.dispatch.sharding import row_wise
from fusewheel.ops._checks import check_rows, check_same
from fusewheel.ops._elementwise import SIZES
from fusewheel.ops._rows import empty_statistic
from fusewheel.ops.norm.layer_norm import backward_reference as norm_backward_reference
from fusewheel.ops.norm.layer_norm import (
    check_layer_norm,
    check_layer_norm_backward,
    parameter_samples,
)
from fusewheel.ops.norm.layer_norm import reference as norm_reference


def add_layer_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor]:
    """`sum = x + residual` and `layer_norm(sum, weight, bias, eps)`, in one pass over memory.

    The sum is rounded to the dtype of `x` before it is normalised, so the values are those of the
    two operations one after the other. A block that normalises after the addition (the original
    transformer, BERT) does not need the sum and may drop it. `fusewheel.layer_norm` has the
    formula.

    Source: Ba, Kiros and Hinton, "Layer Normalization" (2016); `torch.nn.functional.layer_norm`.

    Args:
        x: at least one dimension; float32, bfloat16, float16 or float64.
        residual: shape, dtype and device of `x`.
        weight: `[x.shape[-1]]`, with the dtype and device of `x`; default None, which means ones.
        bias: `[x.shape[-1]]`, with the dtype and device of `x`; default None, which means zeros.
        eps: added to the variance; default 1e-5.

    Returns:
        The normalised sum, and the sum: contiguous tensors with the shape and dtype of `x`.

    Raises:
        RuntimeError: a dtype is not one of the four, dtypes or devices differ, `residual`, `weight`
            or `bias` has another shape, `x` has no dimension, or a tensor is sparse.
    """
    y, total, _, _ = torch.ops.fusewheel.add_layer_norm(x, residual, weight, bias, eps)
    return y, total


def _reference(
    x: Tensor, residual: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _of_sum(x + residual, weight, bias, eps)


def _of_sum(
    total: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The results as a function of the sum, of which the gradient is that of both addends."""
    y, mean, rstd = norm_reference(total, weight, bias, eps)
    return y, total, mean, rstd


def _fake(
    x: Tensor, residual: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    check_rows("add_layer_norm", ("x", x))
    check_same("add_layer_norm", ("residual", residual), ("x", x))
    check_layer_norm("add_layer_norm", ("x", x), weight, bias)
    return x.new_empty(x.shape), x.new_empty(x.shape), empty_statistic(x), empty_statistic(x)


def _backward(
    needs: Sequence[bool], grads: Sequence[Tensor], arguments: Arguments, saved: Sequence[Tensor]
) -> tuple[Any, ...]:
    weight = arguments[2]
    grad_y, grad_sum, grad_mean, grad_rstd = grads
    total, mean, rstd = saved
    if grad_mean is not None or grad_rstd is not None:
        # Only second derivatives (and whoever calls the operator for its statistics) come here. The
        # parts are added before they are rounded.
        addend, *others = reference_gradients(
            _of_sum, (needs[0] or needs[1], *needs[2:]), grads, (total, *arguments[2:])
        )
        return addend, addend, *others
    parameters = needs[2] or needs[3]
    grad, grad_weight, grad_bias = grad_sum, None, None
    if grad_y is not None and grad_sum is not None:
        grad, grad_weight, grad_bias = torch.ops.fusewheel.add_layer_norm_backward(
            grad_y, grad_sum, total, weight, mean, rstd, parameters
        )
    elif grad_y is not None:
        grad, grad_weight, grad_bias = torch.ops.fusewheel.layer_norm_backward(
            grad_y, total, weight, mean, rstd, parameters
        )
    return grad, grad, grad_weight if needs[2] else None, grad_bias if needs[3] else None, None


def _samples(make: Make) -> Iterator[Arguments]:
    for weight, bias in parameter_samples(make, 123):
        yield make(255, 123), make(255, 123), weight, bias, 1e-5
    for weight, bias in parameter_samples(make, 19):
        yield make.strided(2, 2, 19), make(2, 2, 19), weight, bias, 1e-6
    yield make(2, 507), make.strided(2, 507), make.strided(507), make.strided(507), 1e-5
    yield make(2, 3, 64)[:, 1:], make(2, 3, 64)[:, :2], make(64), make(64), 1e-5
    yield make.transposed(2, 9, 8), make(2, 9, 8), make(8), make(8), 1e-5
    yield make(1, 8).expand(4, 8), make(4, 8), make(1).expand(8), make(8), 1e-5
    yield make(3, 1), make(3, 1), make(1), make(1), 1e-5
    yield make(0, 16), make(0, 16), make(16), make(16), 1e-5


def _benchmarks(make: Make) -> Iterator[tuple[str, Arguments]]:
    for rows, size in SIZES:
        addends = make(rows, size), make(rows, size)
        yield f"{rows}x{size}", (*addends, make(size), make(size), 1e-5)


def _bad_inputs(make: Make) -> Iterator[BadInput]:
    x, weight = make(4, 8), make(8)
    other = torch.float64 if x.dtype != torch.float64 else torch.float32
    yield BadInput((x.int(), x.int(), None, None, 1e-5), "x must be float32.*got int32")
    yield BadInput((x, x.to(other), None, None, 1e-5), "residual must have the dtype of x")
    yield BadInput((x, x, weight.to(other), None, 1e-5), "weight must have the dtype of x")
    yield BadInput((x, make(8), None, None, 1e-5), r"residual must have shape \[4, 8\].*got \[8\]")
    yield BadInput((x, x, make(7), None, 1e-5), r"weight must have shape \[8\].*got \[7\]")
    yield BadInput((x, x, None, make(7), 1e-5), r"bias must have shape \[8\].*got \[7\]")
    yield BadInput((make(), make(), None, None, 1e-5), "x must have at least one dimension")


def _backward_reference(
    grad: Tensor,
    grad_sum: Tensor,
    sum: Tensor,
    weight: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    parameters: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    own, grad_weight, grad_bias = norm_backward_reference(grad, sum, weight, mean, rstd, parameters)
    return own + grad_sum, grad_weight, grad_bias


def _backward_fake(
    grad: Tensor,
    grad_sum: Tensor,
    sum: Tensor,
    weight: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    parameters: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    op = "add_layer_norm_backward"
    check_layer_norm_backward(op, grad, ("sum", sum), weight, mean, rstd)
    check_same(op, ("grad_sum", grad_sum), ("sum", sum))
    columns = sum.shape[-1] if parameters else 0
    return sum.new_empty(sum.shape), sum.new_empty(columns), sum.new_empty(columns)


def _backward_samples(make: Make) -> Iterator[Arguments]:
    for x, residual, weight, bias, eps in _samples(make):
        _, total, mean, rstd = _reference(x.detach(), residual.detach(), None, None, eps)
        parameters = bias is not None or weight is not None
        yield make(*x.shape), make(*x.shape), total, weight, mean, rstd, parameters
        if x.dim() == 2 and x.shape[0] > 1:
            grads = make.strided(*x.shape), make.transposed(*x.shape)
            yield *grads, total, weight, mean, rstd, bias is None


def _backward_bad_inputs(make: Make) -> Iterator[BadInput]:
    x = make(4, 8)
    _, mean, rstd = norm_reference(x.detach(), None, None, 1e-5)
    yield BadInput((make(4, 7), x, x, None, mean, rstd, True), r"grad must have shape \[4, 8\]")
    yield BadInput((x, make(8), x, None, mean, rstd, True), r"grad_sum must have shape \[4, 8\]")
    yield BadInput((x, x, x, make(7), mean, rstd, True), r"weight must have shape \[8\]")
    yield BadInput((x, x, x, None, mean[:3], rstd, True), r"mean must have shape \[4\]")
    yield BadInput((x, x, x, None, mean, rstd[:3], True), r"rstd must have shape \[4\]")
    yield BadInput((x, x, make(), None, mean, rstd, True), "sum must have at least one dimension")


OPERATORS = (
    Operator(
        name="add_layer_norm",
        reference=_reference,
        fake=_fake,
        shapes=("x", "x", "rows(x)", "rows(x)"),
        backward=_backward,
        saves=("weight", "sum", "mean", "rstd"),
        materialize_grads=False,
        sharding=row_wise((0, 1), ("rows", "rows", "rows", "rows")),
        samples=_samples,
        bad_inputs=_bad_inputs,
        benchmarks=_benchmarks,
        function=add_layer_norm,
    ),
    Operator(
        name="add_layer_norm_backward",
        reference=_backward_reference,
        fake=_backward_fake,
        shapes=("sum", "when(parameters, sum[-1:])", "when(parameters, sum[-1:])"),
        saves=("grad", "sum", "weight", "mean", "rstd"),
        sharding=row_wise((0, 1, 2, 4, 5), ("rows", "sum", "sum")),
        samples=_backward_samples,
        bad_inputs=_backward_bad_inputs,
    ),
)

"""x + residual, and its RMS norm"""

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
from fusewheel.ops.choices import Cast
from fusewheel.ops.norm.rms_norm import (
    GEMMA,
    LLAMA,
    TORCH,
    cast_number,
    check_rms_norm,
    check_rms_norm_backward,
)
from fusewheel.ops.norm.rms_norm import backward_reference as norm_backward_reference
from fusewheel.ops.norm.rms_norm import reference as norm_reference


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float = 1e-6, cast: Cast = "llama"
) -> tuple[Tensor, Tensor]:
    """`sum = x + residual` and `rms_norm(sum, weight, eps, cast)`, in one pass over memory.

    A transformer block with pre-normalisation does this between two sub-layers. The sum is rounded
    to the dtype of `x` before it is normalised, so the values are those of the two operations one
    after the other. `fusewheel.rms_norm` has the formula.

    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019);
    `torch.nn.functional.rms_norm`.

    Args:
        x: at least one dimension; float32, bfloat16, float16 or float64.
        residual: shape, dtype and device of `x`.
        weight: `[x.shape[-1]]`, with the dtype and device of `x`.
        eps: added to the mean square; default 1e-6.
        cast: `"llama"` (default), `"gemma"` or `"torch"`: where values are rounded, see `rms_norm`.

    Returns:
        The normalised sum, and the sum: contiguous tensors with the shape and dtype of `x`.

    Raises:
        ValueError: `cast` is not one of the three.
        RuntimeError: a dtype is not one of the four, dtypes or devices differ, `residual` or
            `weight` has another shape, `x` has no dimension, or a tensor is sparse.
    """
    number = cast_number("add_rms_norm", cast)
    y, total, _ = torch.ops.fusewheel.add_rms_norm(x, residual, weight, eps, number)
    return y, total


def _reference(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, cast: int
) -> tuple[Tensor, Tensor, Tensor]:
    return _of_sum(x + residual, weight, eps, cast)


def _of_sum(total: Tensor, weight: Tensor, eps: float, cast: int) -> tuple[Tensor, Tensor, Tensor]:
    """The results as a function of the sum, of which the gradient is that of both addends."""
    y, rstd = norm_reference(total, weight, eps, cast)
    return y, total, rstd


def _fake(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, cast: int
) -> tuple[Tensor, Tensor, Tensor]:
    check_rows("add_rms_norm", ("x", x))
    check_same("add_rms_norm", ("residual", residual), ("x", x))
    check_rms_norm("add_rms_norm", ("x", x), weight, cast)
    return x.new_empty(x.shape), x.new_empty(x.shape), empty_statistic(x)


def _backward(
    needs: Sequence[bool], grads: Sequence[Tensor], arguments: Arguments, saved: Sequence[Tensor]
) -> tuple[Any, ...]:
    _, _, weight, _, cast = arguments
    grad_y, grad_sum, grad_rstd = grads
    total, rstd = saved
    if grad_rstd is not None:
        # Only second derivatives (and whoever calls the operator for its rstd) come here. The parts
        # are added before they are rounded.
        addend, *others = reference_gradients(
            _of_sum, (needs[0] or needs[1], *needs[2:]), grads, (total, *arguments[2:])
        )
        return addend, addend, *others
    grad, grad_weight = grad_sum, None
    if grad_y is not None and grad_sum is not None:
        grad, grad_weight = torch.ops.fusewheel.add_rms_norm_backward(
            grad_y, grad_sum, total, weight, rstd, cast
        )
    elif grad_y is not None:
        grad, grad_weight = torch.ops.fusewheel.rms_norm_backward(grad_y, total, weight, rstd, cast)
    return grad, grad, grad_weight, None, None


def _samples(make: Make) -> Iterator[Arguments]:
    for cast in (LLAMA, GEMMA, TORCH):
        yield make(255, 123), make(255, 123), make(123), 1e-6, cast
        yield make.strided(3, 4, 33), make(3, 4, 33), make.strided(33), 1e-5, cast
    yield make(2, 507), make.strided(2, 507), make(507), 1e-6, LLAMA
    yield make(2, 3, 64)[:, 1:], make(2, 3, 64)[:, :2], make(64), 1e-6, LLAMA
    yield make.transposed(2, 9, 8), make(2, 9, 8), make(8), 1e-6, TORCH
    yield make(1, 8).expand(4, 8), make(4, 8), make(1).expand(8), 1e-6, GEMMA
    # With less, nothing is left of the gradient but roundings.
    yield make(1), make(1), make(1), 0.5, LLAMA
    yield make(0, 16), make(0, 16), make(16), 1e-6, LLAMA
    yield make(4, 32, scale=1e-4), make(4, 32, scale=1e-4), make(32), 1e-6, LLAMA


def _benchmarks(make: Make) -> Iterator[tuple[str, Arguments]]:
    for rows, size in SIZES:
        yield f"{rows}x{size}", (make(rows, size), make(rows, size), make(size), 1e-6, LLAMA)


def _bad_inputs(make: Make) -> Iterator[BadInput]:
    x, weight = make(4, 8), make(8)
    other = torch.float64 if x.dtype != torch.float64 else torch.float32
    yield BadInput((x.to(torch.int32), x, weight, 1e-6, 0), "x must be float32.*got int32")
    yield BadInput((x, x.to(other), weight, 1e-6, 0), "residual must have the dtype of x")
    yield BadInput((x, x, weight.to(other), 1e-6, 0), "weight must have the dtype of x")
    yield BadInput((x, make(8), weight, 1e-6, 0), r"residual must have shape \[4, 8\].*got \[8\]")
    yield BadInput((x, x, make(7), 1e-6, 0), r"weight must have shape \[8\].*got \[7\]")
    yield BadInput((make(), make(), weight, 1e-6, 0), "x must have at least one dimension")
    yield BadInput((x, x, weight, 1e-6, 3), "cast must be 0 .*got 3")


def _backward_reference(
    grad: Tensor, grad_sum: Tensor, sum: Tensor, weight: Tensor, rstd: Tensor, cast: int
) -> tuple[Tensor, Tensor]:
    grad_x, grad_weight = norm_backward_reference(grad, sum, weight, rstd, cast)
    return grad_x + grad_sum, grad_weight


def _backward_fake(
    grad: Tensor, grad_sum: Tensor, sum: Tensor, weight: Tensor, rstd: Tensor, cast: int
) -> tuple[Tensor, Tensor]:
    op = "add_rms_norm_backward"
    check_rms_norm_backward(op, grad, ("sum", sum), weight, rstd, cast)
    check_same(op, ("grad_sum", grad_sum), ("sum", sum))
    return sum.new_empty(sum.shape), weight.new_empty(weight.shape)


def _backward_samples(make: Make) -> Iterator[Arguments]:
    for x, residual, weight, eps, cast in _samples(make):
        _, total, rstd = _reference(x.detach(), residual.detach(), weight.detach(), eps, cast)
        yield make(*x.shape), make(*x.shape), total, weight, rstd, cast
        if x.dim() == 2 and x.shape[0] > 1:
            yield make.strided(*x.shape), make.transposed(*x.shape), total, weight, rstd, cast


def _backward_bad_inputs(make: Make) -> Iterator[BadInput]:
    x, weight = make(4, 8), make(8)
    rstd = norm_reference(x.detach(), weight.detach(), 1e-6, 0)[1]
    yield BadInput((make(4, 7), x, x, weight, rstd, 0), r"grad must have shape \[4, 8\]")
    yield BadInput((x, make(1, 8), x, weight, rstd, 0), r"grad_sum must have shape \[4, 8\]")
    yield BadInput((x, x, x, make(7), rstd, 0), r"weight must have shape \[8\].*got \[7\]")
    yield BadInput((x, x, make(4, 7), weight, rstd, 0), r"weight must have shape \[7\].*got \[8\]")
    yield BadInput((x, x, x, weight, rstd, -1), "cast must be 0 .*got -1")
    yield BadInput((x, x, x, weight, rstd[:3], 0), r"rstd must have shape \[4\]")
    yield BadInput((x, x, x, weight, rstd.to(torch.bfloat16), 0), "rstd must be float")


OPERATORS = (
    Operator(
        name="add_rms_norm",
        reference=_reference,
        fake=_fake,
        shapes=("x", "x", "rows(x)"),
        backward=_backward,
        saves=("weight", "sum", "rstd"),
        materialize_grads=False,
        sharding=row_wise((0, 1), ("rows", "rows", "rows")),
        samples=_samples,
        bad_inputs=_bad_inputs,
        benchmarks=_benchmarks,
        function=add_rms_norm,
    ),
    Operator(
        name="add_rms_norm_backward",
        reference=_backward_reference,
        fake=_backward_fake,
        shapes=("sum", "weight"),
        saves=("grad", "sum", "weight", "rstd"),
        sharding=row_wise((0, 1, 2, 4), ("rows", "sum")),
        samples=_backward_samples,
        bad_inputs=_backward_bad_inputs,
    ),
)

"""(x - mean) / sqrt(var + eps) * weight + bias over the last dimension"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fusewheel._elementwise import SIZES
from fusewheel._operator import Arguments, BadInput, Make, Operator
from fusewheel._register import reference_gradients
from fusewheel._rows import check_rows, empty_statistic, wide
from fusewheel._sharding import row_wise


def layer_norm(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Layer norm over the last dimension: `(x - mean) * rstd * weight + bias` with
    `rstd = 1 / sqrt(var + eps)` and the variance that divides by the size.

    Source: Ba, Kiros and Hinton, "Layer Normalization" (2016); `torch.nn.functional.layer_norm`,
    to which it is equal. Everything is computed in float32 (float64 for float64) and rounded once.

    Args:
        x: at least one dimension; float32, bfloat16, float16 or float64.
        weight: shape `[x.shape[-1]]`, dtype and device of `x`; ones if absent.
        bias: likewise; zeros if absent.
        eps: added to the variance.

    Returns:
        A contiguous tensor of x's shape and dtype.

    Raises:
        RuntimeError: a dtype is not floating or differs, `weight` or `bias` has another shape, `x`
            has no dimension, or a tensor is sparse.
    """
    y: Tensor = torch.ops.fusewheel.layer_norm(x, weight, bias, eps)[0]
    return y


def reference(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The operator in PyTorch operators."""
    mean = wide(x).mean(-1, keepdim=True)
    centred = wide(x) - mean
    rstd = torch.rsqrt(centred.pow(2).mean(-1, keepdim=True) + eps)
    y = centred * rstd
    y = y if weight is None else y * wide(weight)
    y = y if bias is None else y + wide(bias)
    return y.to(x.dtype), mean.squeeze(-1), rstd.squeeze(-1)


def _fake(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    check_rows("layer_norm", x, ("weight", weight), ("bias", bias))
    return x.new_empty(x.shape), empty_statistic(x), empty_statistic(x)


def _backward(
    needs: Sequence[bool], grads: Sequence[Tensor], arguments: Arguments, saved: Sequence[Tensor]
) -> tuple[Any, ...]:
    x, weight, _, _ = arguments
    grad_y, grad_mean, grad_rstd = grads
    mean, rstd = saved
    if grad_mean is not None or grad_rstd is not None:
        # Only second derivatives (and whoever calls the operator for its statistics) come here. The
        # parts are added before they are rounded.
        return tuple(reference_gradients(reference, needs, grads, arguments))
    grad_x = grad_weight = grad_bias = None
    if grad_y is not None:
        grad_x, grad_weight, grad_bias = torch.ops.fusewheel.layer_norm_backward(
            grad_y, x, weight, mean, rstd, needs[1] or needs[2]
        )
    return grad_x, grad_weight if needs[1] else None, grad_bias if needs[2] else None, None


def parameter_samples(make: Make, size: int) -> Iterator[tuple[Tensor | None, Tensor | None]]:
    """Weight and bias: both, either, none."""
    yield make(size), make(size)
    yield make(size), None
    yield None, make(size)
    yield None, None


def _samples(make: Make) -> Iterator[Arguments]:
    for weight, bias in parameter_samples(make, 123):
        yield make(255, 123), weight, bias, 1e-5
    for weight, bias in parameter_samples(make, 19):
        yield make.strided(2, 2, 19), weight, bias, 1e-6
    yield make(2, 507), make.strided(507), make.strided(507), 1e-5
    yield make(2, 3, 64)[:, 1:], make(64), make(64), 1e-5
    yield make.transposed(2, 9, 8), make(8), make(8), 1e-5
    yield make(33, 1) + make(8), make(1).expand(8), make(8), 1e-5
    yield make(3, 1), make(1), make(1), 1e-5
    yield make(1), make(1), make(1), 1e-5
    yield make(0, 16), make(16), make(16), 1e-5
    yield make(4, 32, scale=0.1), make(32), make(32), 1e-2


def _benchmarks(make: Make) -> Iterator[tuple[str, Arguments]]:
    for rows, size in SIZES:
        yield f"{rows}x{size}", (make(rows, size), make(size), make(size), 1e-5)


def _bad_inputs(make: Make) -> Iterator[BadInput]:
    x, weight = make(4, 8), make(8)
    other = torch.float64 if x.dtype != torch.float64 else torch.float32
    yield BadInput((x.to(torch.int32), None, None, 1e-5), "x must be float32.*got int32")
    yield BadInput((x, weight.to(other), None, 1e-5), "weight must have the dtype of x")
    yield BadInput((x, weight, weight.to(other), 1e-5), "bias must have the dtype of x")
    yield BadInput((x, make(7), None, 1e-5), r"weight must have shape \[8\].*got \[7\]")
    yield BadInput((x, None, make(1, 8), 1e-5), r"bias must have shape \[8\].*got \[1, 8\]")
    yield BadInput((make(), None, None, 1e-5), "x must have at least one dimension")
    yield BadInput((None, weight, weight, 1e-5), r"x\b.*(None|NoneType)")
    if x.dtype == torch.float32:
        yield BadInput((x.to_sparse(), weight, weight, 1e-5), "x must be a dense tensor")


def backward_reference(
    grad: Tensor,
    x: Tensor,
    weight: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    parameters: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The backward operator in PyTorch operators."""
    dy, scale = wide(grad), rstd.unsqueeze(-1)
    h = (wide(x) - mean.unsqueeze(-1)) * scale
    g = dy if weight is None else dy * wide(weight)
    grad_x = scale * (g - g.mean(-1, keepdim=True) - h * (g * h).mean(-1, keepdim=True))
    if not parameters:
        return grad_x.to(x.dtype), x.new_empty(0), x.new_empty(0)
    grad_weight, grad_bias = (t.sum_to_size(x.shape[-1:]) for t in (dy * h, dy))
    return grad_x.to(x.dtype), grad_weight.to(x.dtype), grad_bias.to(x.dtype)


def _backward_fake(
    grad: Tensor,
    x: Tensor,
    weight: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    parameters: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    columns = x.shape[-1] if parameters else 0
    return x.new_empty(x.shape), x.new_empty(columns), x.new_empty(columns)


def _backward_samples(make: Make) -> Iterator[Arguments]:
    for x, weight, bias, eps in _samples(make):
        _, mean, rstd = reference(x.detach(), None, None, eps)
        yield make(*x.shape), x, weight, mean, rstd, bias is not None or weight is not None
        if x.dim() == 2 and x.shape[0] > 1:
            yield make.strided(*x.shape), x, weight, mean, rstd, bias is None


def _backward_bad_inputs(make: Make) -> Iterator[BadInput]:
    x = make(4, 8)
    _, mean, rstd = reference(x.detach(), None, None, 1e-5)
    yield BadInput((make(4, 7), x, None, mean, rstd, True), r"grad must have shape \[4, 8\]")
    yield BadInput((x, x, make(7), mean, rstd, True), r"weight must have shape \[8\]")
    yield BadInput((x, x, None, mean[:3], rstd, True), r"mean must have shape \[4\]")
    yield BadInput((x, x, None, mean, rstd[:3], False), r"rstd must have shape \[4\]")
    yield BadInput((x, x, None, mean, rstd.to(torch.bfloat16), False), "rstd must be float")


OPERATORS = (
    Operator(
        name="layer_norm",
        reference=reference,
        fake=_fake,
        shapes=("x", "rows(x)", "rows(x)"),
        backward=_backward,
        auxiliary=(1, 2),
        materialize_grads=False,
        sharding=row_wise((0,), ("rows", "rows", "rows")),
        samples=_samples,
        bad_inputs=_bad_inputs,
        benchmarks=_benchmarks,
        function=layer_norm,
    ),
    Operator(
        name="layer_norm_backward",
        reference=backward_reference,
        fake=_backward_fake,
        shapes=("x", "when(parameters, x[-1:])", "when(parameters, x[-1:])"),
        sharding=row_wise((0, 1, 3, 4), ("rows", "sum", "sum")),
        samples=_backward_samples,
        bad_inputs=_backward_bad_inputs,
    ),
)

"""(x - mean) / sqrt(var + eps) * weight + bias over the last dimension"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fusewheel.dispatch.autograd import reference_gradients
from fusewheel.dispatch.operator import Arguments, BadInput, Make, Operator
from fusewheel.dispatch.promise import Argument
from fusewheel.dispatch.sharding import row_wise
from fusewheel.dispatch.short import short_way
from fusewheel.ops._checks import check_columns, check_rows, check_same, check_statistic
from fusewheel.ops._drop_in import check_normalized, drop_in, is_last, is_mixture, sizes
from fusewheel.ops._elementwise import SIZES
from fusewheel.ops._rows import empty_statistic, wide


def _former(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """The function with its former arguments."""
    y: Tensor = torch.ops.fusewheel.layer_norm(x, weight, bias, eps)[0]
    return y


def _is_former(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if len(args) > 1:
        return args[1] is None or isinstance(args[1], Tensor)
    return "normalized_shape" not in kwargs


_call = short_way("layer_norm")


def _scripted(
    input: Tensor,
    normalized_shape: list[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    check_normalized("layer_norm", input, normalized_shape, weight, bias)
    if len(normalized_shape) == 1:
        y: Tensor = torch.ops.fusewheel.layer_norm(input, weight, bias, eps)[0]
        return y
    factor = None if weight is None else weight.flatten()
    offset = None if bias is None else bias.flatten()
    x = input.flatten(-len(normalized_shape))
    result: Tensor = torch.ops.fusewheel.layer_norm(x, factor, offset, eps)[0]
    return result.view_as(input)


def _short(
    input: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor | None:
    if weight is None or not is_last(normalized_shape, weight, input):
        return None
    y: Tensor = _call(input, weight, bias, eps)[0]
    return y


@drop_in("layer_norm", {"x": "input"}, _former, _is_former, _scripted, _short)
def layer_norm(
    input: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Layer norm over the last dimensions: `(input - mean) * rstd * weight + bias` with
    `rstd = 1 / sqrt(var + eps)`.

    `var` is the variance that divides by the number of elements. Everything is computed in float32
    (in float64 for float64) and rounded once. PyTorch's function computes a `weight` or `bias` of
    another floating dtype than `input`.

    Source: Ba, Kiros and Hinton, "Layer Normalization" (2016); `torch.nn.functional.layer_norm`.

    Args:
        input: a shape that ends with `normalized_shape`; float32, bfloat16, float16 or float64.
        normalized_shape: the sizes of the last dimensions, over which mean and variance are taken;
            a number is the size of the last one.
        weight: has the shape `normalized_shape`, and the device of `input`; default None, which
            means ones.
        bias: has the shape `normalized_shape`, and the device of `input`; default None, which means
            zeros.
        eps: added to the variance; default 1e-5.

    Returns:
        A contiguous tensor with the shape and dtype of `input`.

    Raises:
        RuntimeError: a dtype is not one of the four, devices differ, a shape is not as above, or a
            tensor is sparse.
    """
    shape = sizes("layer_norm", normalized_shape)
    if is_mixture(input, weight, bias):
        return torch.nn.functional.layer_norm(input, shape, weight, bias, eps)
    check_normalized("layer_norm", input, shape, weight, bias)
    if len(shape) == 1:
        y: Tensor = _call(input, weight, bias, eps)[0]
        return y
    return _scripted(input, shape, weight, bias, eps)


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


def check_layer_norm(op: str, x: Argument, weight: Tensor | None, bias: Tensor | None) -> None:
    """Raises the errors of the kernel."""
    check_rows(op, x)
    check_columns(op, "weight", weight, x)
    check_columns(op, "bias", bias, x)


def check_layer_norm_backward(
    op: str, grad: Tensor, x: Argument, weight: Tensor | None, mean: Tensor, rstd: Tensor
) -> None:
    """Raises the errors of the backward kernel."""
    check_rows(op, x)
    check_same(op, ("grad", grad), x)
    check_statistic(op, ("mean", mean), x[1])
    check_statistic(op, ("rstd", rstd), x[1])
    check_columns(op, "weight", weight, x)


def _fake(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    check_layer_norm("layer_norm", ("x", x), weight, bias)
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
    check_layer_norm_backward("layer_norm_backward", grad, ("x", x), weight, mean, rstd)
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
    yield BadInput((make(), make(), None, mean, rstd, True), "x must have at least one dimension")
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
        saves=("x", "weight", "mean", "rstd"),
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

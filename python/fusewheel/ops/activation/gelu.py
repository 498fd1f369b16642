"""gelu(x)"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fusewheel.dispatch.operator import Arguments, BadInput, Make, Operator
from fusewheel.dispatch.sharding import Elementwise
from fusewheel.dispatch.short import short_way
from fusewheel.ops._drop_in import drop_in
from fusewheel.ops._elementwise import SIZES, bad_pairs, empty_output
from fusewheel.ops.choices import Approximate

_call = short_way("gelu")


def _is_tanh(approximate: Approximate) -> bool:
    if approximate != "none" and approximate != "tanh":
        raise ValueError(f"gelu: approximate must be 'none' or 'tanh', got '{approximate}'")
    return approximate == "tanh"


def _scripted(input: Tensor, approximate: Approximate = "none") -> Tensor:
    result: Tensor = torch.ops.fusewheel.gelu(input, _is_tanh(approximate))
    return result


def _former(x: Tensor, approximate: Approximate = "none") -> Tensor:
    """The function with its former arguments."""
    return _scripted(x, approximate)


def _short(input: Tensor, approximate: Approximate = "none") -> Tensor:
    result: Tensor = _call(input, _is_tanh(approximate))
    return result


@drop_in("gelu", {"x": "input"}, _former, lambda _, kwargs: "x" in kwargs, _scripted, _short)
def gelu(input: Tensor, approximate: Approximate = "none") -> Tensor:
    """The GELU activation `x * p(x)` of each element `x`, where `p` is the distribution function of
    the standard normal distribution, `p(x) = (1 + erf(x / sqrt(2))) / 2`.

    With `approximate="tanh"` it is
    `p(x) = (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3))) / 2`. bfloat16 and float16 are
    computed in float32; the result is rounded once.

    Source: Hendrycks and Gimpel, "Gaussian Error Linear Units" (2016);
    `torch.nn.functional.gelu`.

    Args:
        input: any shape; float32, bfloat16, float16 or float64.
        approximate: `"none"` (default) for the exact formula, `"tanh"` for the approximation.

    Returns:
        A tensor with the shape and dtype of `input`.

    Raises:
        ValueError: `approximate` is neither `"none"` nor `"tanh"`.
        RuntimeError: the dtype of `input` is not one of the four, or it is sparse.
    """
    result: Tensor = _call(input, _is_tanh(approximate))
    return result


def gelu_value(x: Tensor, tanh: bool) -> Tensor:
    """The function `gelu` in PyTorch operators.

    float64 uses `erfc`, because the kernels are judged by it: PyTorch's gelu loses digits for large
    negative inputs.
    """
    if x.dtype == torch.float64:
        return x * _distribution(x, tanh)
    return torch.nn.functional.gelu(x, approximate="tanh" if tanh else "none")


def gelu_slope(x: Tensor, tanh: bool) -> Tensor:
    """The derivative of gelu, in differentiable PyTorch operators."""
    p = _distribution(x, tanh)
    if tanh:
        return p + x * p * (1 - p) * 1.5957691216057308 * (1 + 0.134145 * x * x)
    return p + x * torch.exp(-x * x / 2) * 0.3989422804014327


def _distribution(x: Tensor, tanh: bool) -> Tensor:
    if tanh:
        return torch.sigmoid(1.5957691216057308 * x * (1 + 0.044715 * x * x))
    if x.dtype == torch.float64:
        return torch.erfc(x * -0.7071067811865476) / 2
    return (1 + torch.erf(x * 0.7071067811865476)) / 2


def _reference(x: Tensor, tanh: bool) -> Tensor:
    return gelu_value(x, tanh)


def _fake(x: Tensor, tanh: bool) -> Tensor:
    return empty_output("gelu", ("x", x))


def _backward(
    needs: Sequence[bool], grads: Sequence[Tensor], arguments: Arguments, saved: Sequence[Tensor]
) -> tuple[Any, ...]:
    x, tanh = arguments
    return torch.ops.fusewheel.gelu_backward(grads[0], x, tanh), None


def _samples(make: Make) -> Iterator[Arguments]:
    for tanh in (False, True):
        yield make(255, 123), tanh
        yield make(19, scale=10.0), tanh
        yield make.strided(5, 9), tanh
        yield make.transposed(3, 8, 5), tanh
        yield make(), tanh
        yield make(0, 3), tanh


def _benchmarks(make: Make) -> Iterator[tuple[str, Arguments]]:
    for rows, size in SIZES:
        yield f"{rows}x{size} erf", (make(rows, size), False)
        yield f"{rows}x{size} tanh", (make(rows, size), True)


def _bad_inputs(make: Make) -> Iterator[BadInput]:
    x = make(4, 8)
    yield BadInput((x.to(torch.int64), False), "x must be float32.*got int64")


def _backward_reference(grad: Tensor, x: Tensor, tanh: bool) -> Tensor:
    return grad * gelu_slope(x, tanh)


def _backward_fake(grad: Tensor, x: Tensor, tanh: bool) -> Tensor:
    return empty_output("gelu_backward", ("grad", grad), ("x", x))


def _backward_samples(make: Make) -> Iterator[Arguments]:
    for x, tanh in _samples(make):
        yield make(*x.shape), x, tanh


def _backward_bad_inputs(make: Make) -> Iterator[BadInput]:
    return bad_pairs(make, "grad", "x", False)


OPERATORS = (
    Operator(
        name="gelu",
        reference=_reference,
        fake=_fake,
        shapes=("x",),
        backward=_backward,
        sharding=Elementwise(),
        samples=_samples,
        bad_inputs=_bad_inputs,
        benchmarks=_benchmarks,
        function=gelu,
    ),
    Operator(
        name="gelu_backward",
        reference=_backward_reference,
        fake=_backward_fake,
        shapes=("broadcast(grad, x)",),
        sharding=Elementwise(),
        samples=_backward_samples,
        bad_inputs=_backward_bad_inputs,
    ),
)

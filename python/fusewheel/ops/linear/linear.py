"""Linear layer whose weight may be stored in less precision than it computes in"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fusewheel.dispatch import sharding
from fusewheel.dispatch.operator import Arguments, Operator, Unsaved
from fusewheel.dispatch.sharding import PARTIAL, REPLICATE, Layout
from fusewheel.dispatch.short import short_way
from fusewheel.ops._checks import (
    check,
    check_bias,
    check_features,
    check_floating,
    check_matches,
    check_weight,
)
from fusewheel.ops._drop_in import drop_in
from fusewheel.ops._rows import compute_dtype, with_features
from fusewheel.ops.linear import _linear as inputs


def _former(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The function with its former arguments."""
    result: Tensor = torch.ops.fusewheel.linear(x, weight, bias)
    return result


_call = short_way("linear")


def _short(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    result: Tensor = _call(input, weight, bias)
    return result


@drop_in("linear", {"x": "input"}, _former, lambda _, kwargs: "x" in kwargs, _former, _short)
def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A linear layer, `input @ weight.T + bias`, whose weight may have another dtype than `input`.

    The weight is read as it is stored and converted in registers. So bfloat16 and float16 weights
    need half the memory traffic of float32, on any CPU. Sums are float32 (float64 if `input` is
    float64) and rounded once. Nothing is packed in advance or cached, so the weight may change
    between calls.

    PyTorch's function computes complex numbers and integers, and a `weight` of one dimension.

    Source: `torch.nn.functional.linear`.

    Args:
        input: `[..., in features]`; float32, bfloat16, float16 or float64.
        weight: `[out features, in features]`, on the device of `input`; any of the four dtypes, but
            float64 only if `input` is float64.
        bias: `[out features]`, on the device of `input`, with the dtype rule of `weight`; default
            None.

    Returns:
        A contiguous tensor `[..., out features]` with the dtype of `input`.

    Raises:
        RuntimeError: a dtype, shape or device is not as above, or a tensor is sparse.
    """
    if weight.dim() == 1 or (not input.is_floating_point() and weight.dtype == input.dtype):
        return torch.nn.functional.linear(input, weight, bias)
    result: Tensor = _call(input, weight, bias)
    return result


def sum_of_rows(grad: Tensor) -> Tensor:
    """The gradient of a bias, before it is rounded to the dtype of the bias."""
    return _rows(grad).sum(0, dtype=compute_dtype(grad))


def _rows(x: Tensor) -> Tensor:
    return x.flatten(0, -2) if x.dim() > 1 else x[None]


def _product(a: Tensor, b: Tensor, wide: torch.dtype) -> Tensor:
    return a.to(wide) @ b.to(wide)


def _reference(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if weight.dtype == x.dtype and (bias is None or bias.dtype == x.dtype):
        return torch.nn.functional.linear(x, weight, bias)
    wide = compute_dtype(x)
    return torch.nn.functional.linear(
        x.to(wide), weight.to(wide), None if bias is None else bias.to(wide)
    ).to(x.dtype)


def _fake(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    op, argument = "linear", ("x", x)
    check_floating(op, argument)
    check_weight(op, ("weight", weight), argument)
    check_features(op, argument, weight.shape[1], "in features")
    check_bias(op, bias, weight.shape[0], argument)
    return with_features(x, weight.shape[0])


def _backward(
    needs: Sequence[bool],
    grads: Sequence[Tensor],
    arguments: Arguments,
    saved: Sequence[Tensor],
) -> list[Tensor | None]:
    x, weight, bias = arguments
    (grad,) = grads
    fusewheel = torch.ops.fusewheel
    return [
        fusewheel.linear_backward_x(grad, weight) if needs[0] else None,
        _weight_gradient(grad, x, weight) if needs[1] else None,
        sum_of_rows(grad).to(bias.dtype) if needs[2] else None,
    ]


def _weight_gradient(grad: Tensor, x: Tensor, weight: Tensor | Unsaved) -> Tensor:
    like = weight.blank(grad) if isinstance(weight, Unsaved) else weight
    result: Tensor = torch.ops.fusewheel.linear_backward_weight(grad, x, like)
    return result


def _backward_x_reference(grad: Tensor, weight: Tensor) -> Tensor:
    return _product(grad, weight, compute_dtype(grad)).to(grad.dtype)


def _backward_x_fake(grad: Tensor, weight: Tensor) -> Tensor:
    op, argument = "linear_backward_x", ("grad", grad)
    check_floating(op, argument)
    check_weight(op, ("weight", weight), argument)
    check_features(op, argument, weight.shape[0], "out features")
    return with_features(grad, weight.shape[1])


def _backward_x_backward(
    needs: Sequence[bool],
    grads: Sequence[Tensor],
    arguments: Arguments,
    saved: Sequence[Tensor],
) -> list[Tensor | None]:
    grad, weight = arguments
    (outer,) = grads
    fusewheel = torch.ops.fusewheel
    return [
        fusewheel.linear(outer, weight, None) if needs[0] else None,
        _weight_gradient(grad, outer, weight) if needs[1] else None,
    ]


def _backward_weight_reference(grad: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    return _product(_rows(grad).T, _rows(x), compute_dtype(x)).to(weight.dtype)


def _backward_weight_fake(grad: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    op, first = "linear_backward_weight", ("grad", grad)
    check_floating(op, first)
    check_matches(op, ("x", x), first)
    check_weight(op, ("weight", weight), first)
    check_features(op, first, weight.shape[0], "out features")
    check_features(op, ("x", x), weight.shape[1], "in features")
    rows, count = math.prod(grad.shape[:-1]), math.prod(x.shape[:-1])
    check(op, count == rows, f"x must have as many rows as grad, {rows}, got {count}")
    return torch.empty(weight.shape, dtype=weight.dtype, device=weight.device)


def _backward_weight_backward(
    needs: Sequence[bool],
    grads: Sequence[Tensor],
    arguments: Arguments,
    saved: Sequence[Tensor],
) -> list[Tensor | None]:
    grad, x, _ = arguments
    (outer,) = grads
    fusewheel = torch.ops.fusewheel
    return [
        fusewheel.linear(x, outer, None) if needs[0] else None,
        fusewheel.linear_backward_x(grad, outer) if needs[1] else None,
        torch.zeros_like(outer) if needs[2] else None,
    ]


def _sharding(*arguments: Any) -> Iterator[Layout]:
    # The bias is added on one device only, not on each.
    return sharding.linear(arguments, given=(1, 2), taken={1: 1, 2: PARTIAL})


def _backward_x_sharding(*arguments: Any) -> Iterator[Layout]:
    return sharding.linear_backward(arguments, given=(1,), taken={1: 1})


def _backward_weight_sharding(grad: Tensor, x: Tensor, weight: Tensor) -> Iterator[Layout]:
    last = len(x.shape) - 1
    for dim in range(last):
        yield Layout((dim, dim, REPLICATE), (PARTIAL,))
    yield Layout((last, REPLICATE, 0), (0,))
    yield Layout((REPLICATE, last, 1), (1,))


def _flops(x: Tensor, weight: Tensor, bias: Tensor | None) -> int:
    return 2 * x.numel() * weight.shape[0]


def _backward_x_flops(grad: Tensor, weight: Tensor) -> int:
    return 2 * grad.numel() * weight.shape[1]


def _backward_weight_flops(grad: Tensor, x: Tensor, weight: Tensor) -> int:
    return 2 * grad.numel() * weight.shape[1]


OPERATORS: tuple[Operator, ...] = (
    Operator(
        name="linear",
        autocast="lower",
        flops=_flops,
        reference=_reference,
        fake=_fake,
        shapes=("with_last(x, weight[0])",),
        backward=_backward,
        saves={"x": ("weight",), "weight": ("x",), "bias": ()},
        sharding=_sharding,
        samples=inputs.samples,
        bad_inputs=inputs.bad_inputs,
        benchmarks=inputs.benchmarks,
        function=linear,
    ),
    Operator(
        name="linear_backward_x",
        flops=_backward_x_flops,
        reference=_backward_x_reference,
        fake=_backward_x_fake,
        shapes=("with_last(grad, weight[1])",),
        backward=_backward_x_backward,
        saves={"grad": ("weight",), "weight": ("grad",)},
        sharding=_backward_x_sharding,
        samples=inputs.backward_x_samples,
        bad_inputs=inputs.backward_x_bad_inputs,
    ),
    Operator(
        name="linear_backward_weight",
        flops=_backward_weight_flops,
        reference=_backward_weight_reference,
        fake=_backward_weight_fake,
        shapes=("weight",),
        backward=_backward_weight_backward,
        saves={"grad": ("x",), "x": ("grad",), "weight": ()},
        sharding=_backward_weight_sharding,
        samples=inputs.backward_weight_samples,
        bad_inputs=inputs.backward_weight_bad_inputs,
    ),
)

"""Linear layer whose weight may be stored in less precision than it computes in"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fusewheel import _sharding as sharding
from fusewheel._operator import Arguments, BadInput, Make, Operator
from fusewheel._rows import check_matrix
from fusewheel._sharding import PARTIAL, REPLICATE, Layout


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`y = x @ weight.T + bias`, as `torch.nn.functional.linear`, summed in float32.

    The weight is read in the precision it is stored in and widened in the registers: bfloat16 and
    float16 weights cost half the memory traffic of float32 and none of its accuracy, whatever the
    CPU knows of them. Nothing is packed ahead or cached, so a weight may change between calls.

    Args:
        x: `[..., in features]`, float32, bfloat16, float16 or float64; its last dimension is read
            as it lies where it is contiguous.
        weight: `[out features, in features]`, any of these dtypes whatever that of `x`, except
            that float64 needs an `x` in float64.
        bias: `[out features]`, likewise; none by default.

    Returns:
        `[..., out features]`, contiguous, in the dtype of `x`.

    Raises:
        RuntimeError: a dtype is not floating, a shape does not fit, or a tensor is sparse or on
            another device.
    """
    result: Tensor = torch.ops.fusewheel.linear(x, weight, bias)
    return result


def accumulate(x: Tensor) -> torch.dtype:
    """The dtype that products with `x` are summed in."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def with_features(x: Tensor, features: int) -> Tensor:
    """An empty tensor like `x` with another last dimension."""
    return torch.empty((*x.shape[:-1], features), dtype=x.dtype, device=x.device)


def sum_of_rows(grad: Tensor) -> Tensor:
    """The gradient of a bias, not rounded yet."""
    return _rows(grad).sum(0, dtype=accumulate(grad))


def _rows(x: Tensor) -> Tensor:
    return x.flatten(0, -2) if x.dim() > 1 else x[None]


def _product(a: Tensor, b: Tensor, wide: torch.dtype) -> Tensor:
    return a.to(wide) @ b.to(wide)


def _reference(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if weight.dtype == x.dtype and (bias is None or bias.dtype == x.dtype):
        return torch.nn.functional.linear(x, weight, bias)
    wide = accumulate(x)
    return torch.nn.functional.linear(
        x.to(wide), weight.to(wide), None if bias is None else bias.to(wide)
    ).to(x.dtype)


def _fake(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    check_matrix("linear", "weight", weight)
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
        fusewheel.linear_backward_weight(grad, x, weight) if needs[1] else None,
        sum_of_rows(grad).to(bias.dtype) if needs[2] else None,
    ]


def _backward_x_reference(grad: Tensor, weight: Tensor) -> Tensor:
    return _product(grad, weight, accumulate(grad)).to(grad.dtype)


def _backward_x_fake(grad: Tensor, weight: Tensor) -> Tensor:
    check_matrix("linear_backward_x", "weight", weight)
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
        fusewheel.linear_backward_weight(grad, outer, weight) if needs[1] else None,
    ]


def _backward_weight_reference(grad: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    return _product(_rows(grad).T, _rows(x), accumulate(x)).to(weight.dtype)


def _backward_weight_fake(grad: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    check_matrix("linear_backward_weight", "weight", weight)
    return torch.empty(weight.shape, dtype=weight.dtype, device=weight.device)


def _backward_weight_backward(
    needs: Sequence[bool],
    grads: Sequence[Tensor],
    arguments: Arguments,
    saved: Sequence[Tensor],
) -> list[Tensor | None]:
    grad, x, weight = arguments
    (outer,) = grads
    fusewheel = torch.ops.fusewheel
    return [
        fusewheel.linear(x, outer, None) if needs[0] else None,
        fusewheel.linear_backward_x(grad, outer) if needs[1] else None,
        torch.zeros_like(weight) if needs[2] else None,
    ]


def _samples(make: Make) -> Iterator[Arguments]:
    yield make(255, 123), make(507, 123), make(507)
    yield make(3, 7), make(5, 7), make(5)
    yield make(2, 3, 5), make(4, 5), None
    yield make(33), make(9, 33), make(9)
    yield make(1, 2048), make(70, 2048), None
    yield make(4, 96), make(33, 96), make(33)
    yield make(17, 800), make(129, 800), None
    yield make.strided(6, 9), make.strided(8, 9), make.strided(8)
    yield make.transposed(6, 9), make.transposed(8, 9), None
    yield make(1, 8).expand(4, 8), make(3, 8), None
    yield make(0, 8), make(3, 8), make(3)
    yield make(2, 0, 8), make(3, 8), None
    yield make(4, 0), make(3, 0), make(3)
    yield make(4, 8), make(0, 8), None


def _backward_x_samples(make: Make) -> Iterator[Arguments]:
    for x, weight, _ in _samples(make):
        yield make(*x.shape[:-1], weight.shape[0]), weight


def _backward_weight_samples(make: Make) -> Iterator[Arguments]:
    for x, weight, _ in _samples(make):
        yield make(*x.shape[:-1], weight.shape[0]), x, weight


def _bad_inputs(make: Make) -> Iterator[BadInput]:
    x, weight, bias = make(4, 8), make(3, 8), make(3)
    yield BadInput((x.to(torch.int32), weight, None), "x must be float32.*got int32")
    yield BadInput((x, weight.to(torch.int8), None), "weight must be float32.*got int8")
    yield BadInput((None, weight, None), r"x\b.*(None|NoneType)")
    yield BadInput((x, None, None), r"weight\b.*(None|NoneType)")
    yield BadInput((x, make(8), None), r"weight must be a matrix.*got shape \[8\]")
    yield BadInput((make(4, 7), weight, None), r"x must have 8 elements.*got shape \[4, 7\]")
    yield BadInput((make(), weight, None), r"x must have 8 elements.*got shape \[\]")
    yield BadInput((x, weight, make(4)), r"bias must have shape \[3\].*got \[4\]")
    yield BadInput((x, weight, bias.to(torch.int64)), "bias must be float32.*got int64")
    if x.dtype != torch.float64:
        yield BadInput((x, weight.double(), None), "weight may be float64 only where x is")
    if x.dtype == torch.float32:
        yield BadInput((x.to_sparse(), weight, None), "x must be a dense tensor")


def _backward_x_bad_inputs(make: Make) -> Iterator[BadInput]:
    grad, weight = make(4, 3), make(3, 8)
    yield BadInput((grad.to(torch.int32), weight), "grad must be float32.*got int32")
    yield BadInput((make(4, 5), weight), r"grad must have 3 elements.*got shape \[4, 5\]")
    yield BadInput((grad, None), r"weight\b.*(None|NoneType)")


def _backward_weight_bad_inputs(make: Make) -> Iterator[BadInput]:
    grad, x, weight = make(4, 3), make(4, 8), make(3, 8)
    yield BadInput((grad.to(torch.int32), x, weight), "grad must be float32.*got int32")
    yield BadInput((make(4, 5), x, weight), r"grad must have 3 elements.*got shape \[4, 5\]")
    yield BadInput((grad, make(4, 7), weight), r"x must have 8 elements.*got shape \[4, 7\]")
    yield BadInput((grad, make(5, 8), weight), r"x must have as many rows as grad, 4, got 5")
    other = torch.float64 if x.dtype != torch.float64 else torch.float32
    yield BadInput((grad, x.to(other), weight), "x must have the dtype of grad")


SHAPES = ((2048, 2048), (576, 1536), (2048, 8192))


def _benchmarks(make: Make) -> Iterator[tuple[str, Arguments]]:
    for rows in (1, 4, 16, 64, 256):
        for outputs, inputs in SHAPES:
            yield f"{rows}x{inputs}x{outputs}", (make(rows, inputs), make(outputs, inputs), None)


def _sharding(*arguments: Any) -> Iterator[Layout]:
    # The bias is added once in all, not once on every device.
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
        sharding=_sharding,
        samples=_samples,
        bad_inputs=_bad_inputs,
        benchmarks=_benchmarks,
        function=linear,
    ),
    Operator(
        name="linear_backward_x",
        flops=_backward_x_flops,
        reference=_backward_x_reference,
        fake=_backward_x_fake,
        shapes=("with_last(grad, weight[1])",),
        backward=_backward_x_backward,
        sharding=_backward_x_sharding,
        samples=_backward_x_samples,
        bad_inputs=_backward_x_bad_inputs,
    ),
    Operator(
        name="linear_backward_weight",
        flops=_backward_weight_flops,
        reference=_backward_weight_reference,
        fake=_backward_weight_fake,
        shapes=("weight",),
        backward=_backward_weight_backward,
        sharding=_backward_weight_sharding,
        samples=_backward_weight_samples,
        bad_inputs=_backward_weight_bad_inputs,
    ),
)

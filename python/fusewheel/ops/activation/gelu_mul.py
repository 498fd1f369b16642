"""gelu(gate) * up"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fusewheel.dispatch.operator import Arguments, BadInput, Make, Operator
from fusewheel.dispatch.sharding import Elementwise, row_wise
from fusewheel.ops._elementwise import SIZES, bad_pairs, empty_output, pairs
from fusewheel.ops.activation._packed import (
    bad_packed,
    bad_packed_backward,
    empty_half,
    empty_packed,
    halves,
    packed_samples,
)
from fusewheel.ops.activation.gelu import gelu_slope, gelu_value
from fusewheel.ops.choices import Approximate


def gelu_mul(gate: Tensor, up: Tensor, approximate: Approximate = "none") -> Tensor:
    """`gelu(gate) * up`, the activation of a GEGLU block. `fusewheel.gelu` has the formula of gelu.

    bfloat16 and float16 are computed in float32 and rounded once; the two PyTorch operators round
    gelu as well.

    Source: Shazeer, "GLU Variants Improve Transformer" (2020); `torch.nn.functional.gelu`.

    Args:
        gate: any shape; float32, bfloat16, float16 or float64. It may be a view of a larger tensor.
        up: a shape that broadcasts with that of `gate`; dtype and device of `gate`.
        approximate: `"none"` (default) for the exact gelu, `"tanh"` for its approximation.

    Returns:
        A tensor of the broadcast shape, with the dtype of `gate`.

    Raises:
        ValueError: `approximate` is neither `"none"` nor `"tanh"`.
        RuntimeError: a dtype is not one of the four, dtypes or devices differ, shapes do not
            broadcast, or a tensor is sparse.
    """
    if approximate != "none" and approximate != "tanh":
        raise ValueError(f"gelu_mul: approximate must be 'none' or 'tanh', got '{approximate}'")
    result: Tensor = torch.ops.fusewheel.gelu_mul(gate, up, approximate == "tanh")
    return result


def gelu_mul_packed(gate_up: Tensor, approximate: Approximate = "none") -> Tensor:
    """`gelu(gate) * up`, where gate and up are the two halves of the last dimension of one tensor.

    A model that computes gate and up by one linear layer has such a tensor. The gradient is one
    tensor too, so it is not put together from two. bfloat16 and float16 are computed in float32 and
    rounded once. `fusewheel.gelu` has the formula of gelu.

    Source: Shazeer, "GLU Variants Improve Transformer" (2020); `torch.nn.functional.gelu`.

    Args:
        gate_up: `[..., 2 * n]`, first gate, then up; float32, bfloat16, float16 or float64.
        approximate: `"none"` (default) for the exact gelu, `"tanh"` for its approximation.

    Returns:
        A contiguous tensor `[..., n]` with the dtype of `gate_up`.

    Raises:
        ValueError: `approximate` is neither `"none"` nor `"tanh"`.
        RuntimeError: the dtype is not one of the four, `gate_up` has no dimension or an odd last
            one, or it is sparse.
    """
    if approximate != "none" and approximate != "tanh":
        raise ValueError(
            f"gelu_mul_packed: approximate must be 'none' or 'tanh', got '{approximate}'"
        )
    result: Tensor = torch.ops.fusewheel.gelu_mul_packed(gate_up, approximate == "tanh")
    return result


def _reference(gate: Tensor, up: Tensor, tanh: bool) -> Tensor:
    return gelu_value(gate, tanh) * up


def _fake(gate: Tensor, up: Tensor, tanh: bool) -> Tensor:
    return empty_output("gelu_mul", ("gate", gate), ("up", up))


def _backward(
    needs: Sequence[bool], grads: Sequence[Tensor], arguments: Arguments, saved: Sequence[Tensor]
) -> tuple[Any, ...]:
    gate, up, tanh = arguments
    grad_gate, grad_up = torch.ops.fusewheel.gelu_mul_backward(grads[0], gate, up, tanh)
    return grad_gate.sum_to_size(gate.shape), grad_up.sum_to_size(up.shape), None


def _samples(make: Make) -> Iterator[Arguments]:
    for i, (gate, up) in enumerate(pairs(make)):
        yield gate, up, i % 2 == 1
    for tanh in (False, True):
        yield make(3, scale=40.0), make(3), tanh
        packed = make(6, 2 * 33)
        yield packed[:, :33], packed[:, 33:], tanh


def _benchmarks(make: Make) -> Iterator[tuple[str, Arguments]]:
    for rows, size in SIZES:
        yield f"{rows}x{size} erf", (make(rows, size), make(rows, size), False)
        yield f"{rows}x{size} tanh", (make(rows, size), make(rows, size), True)


def _bad_inputs(make: Make) -> Iterator[BadInput]:
    return bad_pairs(make, "gate", "up", False)


def _backward_reference(
    grad: Tensor, gate: Tensor, up: Tensor, tanh: bool
) -> tuple[Tensor, Tensor]:
    grad, gate, up = torch.broadcast_tensors(grad, gate, up)
    return grad * up * gelu_slope(gate, tanh), grad * gelu_value(gate, tanh)


def _backward_fake(grad: Tensor, gate: Tensor, up: Tensor, tanh: bool) -> tuple[Tensor, Tensor]:
    arguments = ("grad", grad), ("gate", gate), ("up", up)
    first, second = (empty_output("gelu_mul_backward", *arguments) for _ in range(2))
    return first, second


def _backward_samples(make: Make) -> Iterator[Arguments]:
    for gate, up, tanh in _samples(make):
        yield make(*torch.broadcast_shapes(gate.shape, up.shape)), gate, up, tanh


def _backward_bad_inputs(make: Make) -> Iterator[BadInput]:
    for bad in bad_pairs(make, "grad", "gate"):
        yield BadInput((*bad.arguments, make(4, 8), True), bad.message)
    for bad in bad_pairs(make, "gate", "up"):
        if bad.message.startswith("up"):
            yield BadInput((make(4, 8), *bad.arguments, True), bad.message.replace("gate", "grad"))


def _packed_reference(gate_up: Tensor, tanh: bool) -> Tensor:
    return _reference(*halves(gate_up), tanh)


def _packed_fake(gate_up: Tensor, tanh: bool) -> Tensor:
    return empty_half("gelu_mul_packed", gate_up)


def _packed_backward(
    needs: Sequence[bool], grads: Sequence[Tensor], arguments: Arguments, saved: Sequence[Tensor]
) -> tuple[Any, ...]:
    grad = torch.ops.fusewheel.gelu_mul_packed_backward(grads[0], *arguments)
    return grad, None


def _packed_samples(make: Make) -> Iterator[Arguments]:
    for i, gate_up in enumerate(packed_samples(make)):
        yield gate_up, i % 2 == 1


def _packed_benchmarks(make: Make) -> Iterator[tuple[str, Arguments]]:
    for rows, size in SIZES:
        yield f"{rows}x{size} erf", (make(rows, 2 * size), False)
        yield f"{rows}x{size} tanh", (make(rows, 2 * size), True)


def _packed_bad_inputs(make: Make) -> Iterator[BadInput]:
    return bad_packed(make, False)


def _packed_backward_reference(grad: Tensor, gate_up: Tensor, tanh: bool) -> Tensor:
    return torch.cat(_backward_reference(grad, *halves(gate_up), tanh), dim=-1)


def _packed_backward_fake(grad: Tensor, gate_up: Tensor, tanh: bool) -> Tensor:
    return empty_packed("gelu_mul_packed_backward", grad, gate_up)


def _packed_backward_samples(make: Make) -> Iterator[Arguments]:
    for i, arguments in enumerate(_packed_samples(make)):
        shape = halves(arguments[0])[0].shape
        yield (make.strided if i % 2 else make)(*shape), *arguments


def _packed_backward_bad_inputs(make: Make) -> Iterator[BadInput]:
    return bad_packed_backward(make, False)


OPERATORS = (
    Operator(
        name="gelu_mul",
        reference=_reference,
        fake=_fake,
        shapes=("broadcast(gate, up)",),
        backward=_backward,
        sharding=Elementwise(),
        samples=_samples,
        bad_inputs=_bad_inputs,
        benchmarks=_benchmarks,
        function=gelu_mul,
    ),
    Operator(
        name="gelu_mul_backward",
        reference=_backward_reference,
        fake=_backward_fake,
        shapes=("broadcast(grad, broadcast(gate, up))", "broadcast(grad, broadcast(gate, up))"),
        sharding=Elementwise(outputs=2),
        samples=_backward_samples,
        bad_inputs=_backward_bad_inputs,
    ),
    Operator(
        name="gelu_mul_packed",
        reference=_packed_reference,
        fake=_packed_fake,
        shapes=("with_last(gate_up, gate_up[-1] // 2)",),
        backward=_packed_backward,
        sharding=row_wise((0,), ("rows",)),
        samples=_packed_samples,
        bad_inputs=_packed_bad_inputs,
        benchmarks=_packed_benchmarks,
        function=gelu_mul_packed,
    ),
    Operator(
        name="gelu_mul_packed_backward",
        reference=_packed_backward_reference,
        fake=_packed_backward_fake,
        shapes=("gate_up",),
        sharding=row_wise((0, 1), ("rows",)),
        samples=_packed_backward_samples,
        bad_inputs=_packed_backward_bad_inputs,
    ),
)

"""silu(gate) * up"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fusewheel.dispatch.operator import Arguments, BadInput, Make, Operator
from fusewheel.dispatch.sharding import Elementwise, row_wise
from fusewheel.dispatch.short import passes_on
from fusewheel.ops._elementwise import SIZES, bad_pairs, empty_output, pairs
from fusewheel.ops.activation._packed import (
    bad_packed,
    bad_packed_backward,
    empty_half,
    empty_packed,
    halves,
    packed_samples,
)


@passes_on
def silu_mul(gate: Tensor, up: Tensor) -> Tensor:
    """`silu(gate) * up` with `silu(g) = g / (1 + exp(-g))`, the activation of a SwiGLU block.

    bfloat16 and float16 are computed in float32 and rounded once; the two PyTorch operators round
    silu as well.

    Source: Shazeer, "GLU Variants Improve Transformer" (2020); `torch.nn.functional.silu`.

    Args:
        gate: any shape; float32, bfloat16, float16 or float64. It may be a view of a larger tensor.
        up: a shape that broadcasts with that of `gate`; dtype and device of `gate`.

    Returns:
        A tensor of the broadcast shape, with the dtype of `gate`.

    Raises:
        RuntimeError: a dtype is not one of the four, dtypes or devices differ, shapes do not
            broadcast, or a tensor is sparse.
    """
    result: Tensor = torch.ops.fusewheel.silu_mul(gate, up)
    return result


@passes_on
def silu_mul_packed(gate_up: Tensor) -> Tensor:
    """`silu(gate) * up`, where gate and up are the two halves of the last dimension of one tensor.

    A model that computes gate and up by one linear layer has such a tensor. The gradient is one
    tensor too, so it is not put together from two. `silu(g) = g / (1 + exp(-g))`; bfloat16 and
    float16 are computed in float32 and rounded once.

    Source: Shazeer, "GLU Variants Improve Transformer" (2020); `torch.nn.functional.silu`.

    Args:
        gate_up: `[..., 2 * n]`, first gate, then up; float32, bfloat16, float16 or float64.

    Returns:
        A contiguous tensor `[..., n]` with the dtype of `gate_up`.

    Raises:
        RuntimeError: the dtype is not one of the four, `gate_up` has no dimension or an odd last
            one, or it is sparse.
    """
    result: Tensor = torch.ops.fusewheel.silu_mul_packed(gate_up)
    return result


def _reference(gate: Tensor, up: Tensor) -> Tensor:
    return torch.nn.functional.silu(gate) * up


def _fake(gate: Tensor, up: Tensor) -> Tensor:
    return empty_output("silu_mul", ("gate", gate), ("up", up))


def _backward(
    needs: Sequence[bool], grads: Sequence[Tensor], arguments: Arguments, saved: Sequence[Tensor]
) -> tuple[Any, ...]:
    gate, up = arguments
    grad_gate, grad_up = torch.ops.fusewheel.silu_mul_backward(grads[0], gate, up)
    return grad_gate.sum_to_size(gate.shape), grad_up.sum_to_size(up.shape)


def _samples(make: Make) -> Iterator[Arguments]:
    yield from pairs(make)
    yield make(3, scale=40.0), make(3)
    packed = make(6, 2 * 33)
    yield packed[:, :33], packed[:, 33:]


def _benchmarks(make: Make) -> Iterator[tuple[str, Arguments]]:
    for rows, size in SIZES:
        yield f"{rows}x{size}", (make(rows, size), make(rows, size))


def _backward_reference(grad: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    grad, gate, up = torch.broadcast_tensors(grad, gate, up)
    s = torch.sigmoid(gate)
    return grad * up * (s * (1 + gate * (1 - s))), grad * (gate * s)


def _backward_fake(grad: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    arguments = ("grad", grad), ("gate", gate), ("up", up)
    first, second = (empty_output("silu_mul_backward", *arguments) for _ in range(2))
    return first, second


def _backward_samples(make: Make) -> Iterator[Arguments]:
    for gate, up in _samples(make):
        yield make(*torch.broadcast_shapes(gate.shape, up.shape)), gate, up


def _bad_inputs(make: Make) -> Iterator[BadInput]:
    return bad_pairs(make, "gate", "up")


def _backward_bad_inputs(make: Make) -> Iterator[BadInput]:
    for bad in bad_pairs(make, "grad", "gate"):
        yield BadInput((*bad.arguments, make(4, 8)), bad.message)
    for bad in bad_pairs(make, "gate", "up"):
        if bad.message.startswith("up"):
            yield BadInput((make(4, 8), *bad.arguments), bad.message.replace("gate", "grad"))


def _packed_reference(gate_up: Tensor) -> Tensor:
    return _reference(*halves(gate_up))


def _packed_fake(gate_up: Tensor) -> Tensor:
    return empty_half("silu_mul_packed", gate_up)


def _packed_backward(
    needs: Sequence[bool], grads: Sequence[Tensor], arguments: Arguments, saved: Sequence[Tensor]
) -> tuple[Any, ...]:
    grad = torch.ops.fusewheel.silu_mul_packed_backward(grads[0], *arguments)
    return (grad,)


def _packed_samples(make: Make) -> Iterator[Arguments]:
    for gate_up in packed_samples(make):
        yield (gate_up,)


def _packed_benchmarks(make: Make) -> Iterator[tuple[str, Arguments]]:
    for rows, size in SIZES:
        yield f"{rows}x{size}", (make(rows, 2 * size),)


def _packed_bad_inputs(make: Make) -> Iterator[BadInput]:
    return bad_packed(make)


def _packed_backward_reference(grad: Tensor, gate_up: Tensor) -> Tensor:
    return torch.cat(_backward_reference(grad, *halves(gate_up)), dim=-1)


def _packed_backward_fake(grad: Tensor, gate_up: Tensor) -> Tensor:
    return empty_packed("silu_mul_packed_backward", grad, gate_up)


def _packed_backward_samples(make: Make) -> Iterator[Arguments]:
    for i, arguments in enumerate(_packed_samples(make)):
        shape = halves(arguments[0])[0].shape
        yield (make.strided if i % 2 else make)(*shape), *arguments


def _packed_backward_bad_inputs(make: Make) -> Iterator[BadInput]:
    return bad_packed_backward(make)


OPERATORS = (
    Operator(
        name="silu_mul",
        reference=_reference,
        fake=_fake,
        shapes=("broadcast(gate, up)",),
        backward=_backward,
        sharding=Elementwise(),
        samples=_samples,
        bad_inputs=_bad_inputs,
        benchmarks=_benchmarks,
        function=silu_mul,
    ),
    Operator(
        name="silu_mul_backward",
        reference=_backward_reference,
        fake=_backward_fake,
        shapes=("broadcast(grad, broadcast(gate, up))", "broadcast(grad, broadcast(gate, up))"),
        sharding=Elementwise(outputs=2),
        samples=_backward_samples,
        bad_inputs=_backward_bad_inputs,
    ),
    Operator(
        name="silu_mul_packed",
        reference=_packed_reference,
        fake=_packed_fake,
        shapes=("with_last(gate_up, gate_up[-1] // 2)",),
        backward=_packed_backward,
        sharding=row_wise((0,), ("rows",)),
        samples=_packed_samples,
        bad_inputs=_packed_bad_inputs,
        benchmarks=_packed_benchmarks,
        function=silu_mul_packed,
    ),
    Operator(
        name="silu_mul_packed_backward",
        reference=_packed_backward_reference,
        fake=_packed_backward_fake,
        shapes=("gate_up",),
        sharding=row_wise((0, 1), ("rows",)),
        samples=_packed_backward_samples,
        bad_inputs=_packed_backward_bad_inputs,
    ),
)

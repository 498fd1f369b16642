"""out = a + b, into the caller's tensor"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fusewheel.dispatch.operator import Arguments, BadInput, Make, Operator
from fusewheel.dispatch.sharding import Elementwise
from fusewheel.ops._checks import (
    check_floating,
    check_matches,
    check_not_expanded,
    check_sizes,
)
from fusewheel.ops._elementwise import bad_pairs, broadcast_shape, check_apart, pairs


def add_out(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
    """Writes `a + b` into `out`.

    Autograd treats it as an in-place operation on `out`. Unlike `torch.add(a, b, out=out)` it is
    differentiable in `a` and `b`.

    Source: `torch.add`.

    Args:
        a: any shape; float32, bfloat16, float16 or float64.
        b: a shape that broadcasts with that of `a`; dtype and device of `a`.
        out: the broadcast shape, with the dtype and device of `a`; any strides, if no two elements
            share memory. It may be `a` or `b` itself; any other overlap of dense tensors is
            refused.

    Returns:
        `out`.

    Raises:
        RuntimeError: a dtype, device or shape is not as above, `out` is expanded or overlaps an
            input, a tensor is sparse, or `out` is a leaf that requires a gradient.
    """
    torch.ops.fusewheel.add_out(a, b, out)
    return out


def _reference(a: Tensor, b: Tensor, out: Tensor) -> None:
    out.copy_(a + b)


def _fake(a: Tensor, b: Tensor, out: Tensor) -> None:
    op, first, second, written = "add_out", ("a", a), ("b", b), ("out", out)
    check_apart(op, first, written)
    check_apart(op, second, written)
    check_floating(op, first)
    check_matches(op, second, first)
    shape = broadcast_shape(op, first, second)
    check_matches(op, written, first)
    check_sizes(op, written, shape, "the broadcast shape of the inputs")
    check_not_expanded(op, written)


def _backward(
    needs: Sequence[bool], grads: Sequence[Tensor], arguments: Arguments, saved: Sequence[Tensor]
) -> tuple[Any, ...]:
    a, b, _ = arguments
    return (
        grads[0].sum_to_size(a.shape) if needs[0] else None,
        grads[0].sum_to_size(b.shape) if needs[1] else None,
        None,
    )


def _samples(make: Make) -> Iterator[Arguments]:
    for a, b in pairs(make):
        yield a, b, torch.empty_like(torch.broadcast_tensors(a, b)[0]).contiguous()
    yield make(7, 19), make(7, 19), make.strided(7, 19).detach()


def _bad_inputs(make: Make) -> Iterator[BadInput]:
    a = make(4, 8)
    for bad in bad_pairs(make, "a", "b"):
        yield BadInput((*bad.arguments, torch.empty_like(a)), bad.message)
    yield BadInput((a, a, make(8, 4)), r"out must have shape \[4, 8\].*got \[8, 4\]")
    other = torch.float64 if a.dtype != torch.float64 else torch.float32
    yield BadInput((a, a, a.to(other)), "out must have the dtype of a")
    yield BadInput((a, a, make(1, 8).expand(4, 8)), "out must not be an expanded tensor")
    base = make(33)
    yield BadInput((base[:32], base[:32], base[1:]), "out must not overlap a")


OPERATORS = (
    Operator(
        name="add_out",
        reference=_reference,
        fake=_fake,
        backward=_backward,
        saves=(),
        mutates=2,
        sharding=Elementwise(outputs=0),
        samples=_samples,
        bad_inputs=_bad_inputs,
        function=add_out,
    ),
)

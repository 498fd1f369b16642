"""a * b"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fusewheel.dispatch.operator import Arguments, BadInput, Make, Operator
from fusewheel.dispatch.sharding import PARTIAL, REPLICATE, Elementwise
from fusewheel.dispatch.short import passes_on
from fusewheel.ops._elementwise import SIZES, bad_pairs, empty_output, pairs


@passes_on
def mul(a: Tensor, b: Tensor) -> Tensor:
    """`a * b`. The gradient of `muladd` is made of this operator.

    Source: `torch.mul`.

    Args:
        a: any shape; float32, bfloat16, float16 or float64.
        b: a shape that broadcasts with that of `a`; dtype and device of `a`.

    Returns:
        A tensor of the broadcast shape, with the dtype of `a`.

    Raises:
        RuntimeError: a dtype is not one of the four, dtypes or devices differ, shapes do not
            broadcast, or a tensor is sparse.
    """
    result: Tensor = torch.ops.fusewheel.mul(a, b)
    return result


def _reference(a: Tensor, b: Tensor) -> Tensor:
    return a * b


def _fake(a: Tensor, b: Tensor) -> Tensor:
    return empty_output("mul", ("a", a), ("b", b))


def _backward(
    needs: Sequence[bool], grads: Sequence[Tensor], arguments: Arguments, saved: Sequence[Tensor]
) -> tuple[Any, ...]:
    a, b = arguments
    return (
        mul(grads[0], b).sum_to_size(a.shape) if needs[0] else None,
        mul(grads[0], a).sum_to_size(b.shape) if needs[1] else None,
    )


def _samples(make: Make) -> Iterator[Arguments]:
    return pairs(make)


def _benchmarks(make: Make) -> Iterator[tuple[str, Arguments]]:
    for rows, size in SIZES:
        yield f"{rows}x{size}", (make(rows, size), make(rows, size))


def _bad_inputs(make: Make) -> Iterator[BadInput]:
    return bad_pairs(make, "a", "b")


OPERATORS = (
    Operator(
        name="mul",
        reference=_reference,
        fake=_fake,
        shapes=("broadcast(a, b)",),
        backward=_backward,
        saves={"a": ("b",), "b": ("a",)},
        # The product of a partial sum and a whole tensor is a partial sum.
        sharding=Elementwise(sums=((PARTIAL, REPLICATE), (REPLICATE, PARTIAL))),
        samples=_samples,
        bad_inputs=_bad_inputs,
        benchmarks=_benchmarks,
        function=mul,
    ),
)

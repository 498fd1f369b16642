"""a * b"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fusewheel._elementwise import SIZES, bad_pairs, empty_output, pairs
from fusewheel._operator import Arguments, BadInput, Make, Operator
from fusewheel._sharding import PARTIAL, REPLICATE, Elementwise


def mul(a: Tensor, b: Tensor) -> Tensor:
    """`a * b`; the operator that muladd's gradient is made of.

    Args:
        a: any shape; float32, bfloat16, float16 or float64.
        b: a shape that broadcasts with a's; dtype and device of `a`.

    Returns:
        A tensor of the broadcast shape.

    Raises:
        RuntimeError: a dtype is not floating or differs, shapes do not broadcast, or a tensor is
            sparse.
    """
    result: Tensor = torch.ops.fusewheel.mul(a, b)
    return result


def _reference(a: Tensor, b: Tensor) -> Tensor:
    return a * b


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
        fake=empty_output,
        shapes=("broadcast(a, b)",),
        backward=_backward,
        # A product of sums: one of the two may still be one.
        sharding=Elementwise(sums=((PARTIAL, REPLICATE), (REPLICATE, PARTIAL))),
        samples=_samples,
        bad_inputs=_bad_inputs,
        benchmarks=_benchmarks,
        function=mul,
    ),
)

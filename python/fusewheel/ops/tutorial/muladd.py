"""a * b + c"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fusewheel._elementwise import SIZES, bad_pairs, empty_output, pairs
from fusewheel._operator import Arguments, BadInput, Make, Operator
from fusewheel._sharding import Elementwise


def muladd(a: Tensor, b: Tensor, c: float) -> Tensor:
    """`a * b + c` in one pass over memory, rounded once.

    Args:
        a: any shape; float32, bfloat16, float16 or float64.
        b: a shape that broadcasts with a's; dtype and device of `a`.
        c: added to every product.

    Returns:
        A tensor of the broadcast shape. bfloat16 and float16 are computed in float32.

    Raises:
        RuntimeError: a dtype is not floating or differs, shapes do not broadcast, or a tensor is
            sparse.
    """
    result: Tensor = torch.ops.fusewheel.muladd(a, b, c)
    return result


def _reference(a: Tensor, b: Tensor, c: float) -> Tensor:
    return a * b + c


def _fake(a: Tensor, b: Tensor, c: float) -> Tensor:
    return empty_output(a, b)


def _backward(
    needs: Sequence[bool], grads: Sequence[Tensor], arguments: Arguments, saved: Sequence[Tensor]
) -> tuple[Any, ...]:
    a, b, _ = arguments
    mul = torch.ops.fusewheel.mul
    return (
        mul(grads[0], b).sum_to_size(a.shape) if needs[0] else None,
        mul(grads[0], a).sum_to_size(b.shape) if needs[1] else None,
        None,
    )


def _samples(make: Make) -> Iterator[Arguments]:
    for c, (a, b) in enumerate(pairs(make)):
        yield a, b, c - 1.5


def _benchmarks(make: Make) -> Iterator[tuple[str, Arguments]]:
    for rows, size in SIZES:
        yield f"{rows}x{size}", (make(rows, size), make(rows, size), 1.0)


def _bad_inputs(make: Make) -> Iterator[BadInput]:
    return bad_pairs(make, "a", "b", 1.0)


OPERATORS = (
    Operator(
        name="muladd",
        reference=_reference,
        fake=_fake,
        shapes=("broadcast(a, b)",),
        backward=_backward,
        sharding=Elementwise(),
        samples=_samples,
        bad_inputs=_bad_inputs,
        benchmarks=_benchmarks,
        function=muladd,
    ),
)

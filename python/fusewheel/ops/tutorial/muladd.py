"""a * b + c"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fusewheel.dispatch.operator import Arguments, BadInput, Make, Operator
from fusewheel.dispatch.sharding import Elementwise
from fusewheel.dispatch.short import passes_on
from fusewheel.ops._elementwise import SIZES, bad_pairs, empty_output, pairs


@passes_on
def muladd(a: Tensor, b: Tensor, c: float) -> Tensor:
    """`a * b + c` in one pass over memory.

    bfloat16 and float16 are computed in float32 and rounded once.

    Source: `torch.mul` and `torch.add`.

    Args:
        a: any shape; float32, bfloat16, float16 or float64.
        b: a shape that broadcasts with that of `a`; dtype and device of `a`.
        c: added to every product.

    Returns:
        A tensor of the broadcast shape, with the dtype of `a`.

    Raises:
        RuntimeError: a dtype is not one of the four, dtypes or devices differ, shapes do not
            broadcast, or a tensor is sparse.
    """
    result: Tensor = torch.ops.fusewheel.muladd(a, b, c)
    return result


def _reference(a: Tensor, b: Tensor, c: float) -> Tensor:
    return a * b + c


def _fake(a: Tensor, b: Tensor, c: float) -> Tensor:
    return empty_output("muladd", ("a", a), ("b", b))


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
        saves={"a": ("b",), "b": ("a",)},
        sharding=Elementwise(),
        samples=_samples,
        bad_inputs=_bad_inputs,
        benchmarks=_benchmarks,
        function=muladd,
    ),
)

"""exp(x) + c"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fusewheel.dispatch.operator import Arguments, BadInput, Make, Operator
from fusewheel.dispatch.sharding import Elementwise
from fusewheel.dispatch.short import passes_on
from fusewheel.ops._elementwise import SIZES, empty_output


@passes_on
def exp_add(x: Tensor, c: float) -> Tensor:
    """`exp(x) + c` in one pass over memory.

    bfloat16 and float16 are computed in float32 and rounded once.

    Source: `torch.exp` and `torch.add`.

    Args:
        x: any shape; float32, bfloat16, float16 or float64.
        c: added to every exponential.

    Returns:
        A tensor with the shape and dtype of `x`.

    Raises:
        RuntimeError: the dtype of `x` is not one of the four, or `x` is sparse.
    """
    result: Tensor = torch.ops.fusewheel.exp_add(x, c)
    return result


def _reference(x: Tensor, c: float) -> Tensor:
    return torch.exp(x) + c


def _fake(x: Tensor, c: float) -> Tensor:
    return empty_output("exp_add", ("x", x))


def _backward(
    needs: Sequence[bool], grads: Sequence[Tensor], arguments: Arguments, saved: Sequence[Tensor]
) -> tuple[Any, ...]:
    return torch.ops.fusewheel.mul(grads[0], exp_add(arguments[0], 0.0)), None


def _samples(make: Make) -> Iterator[Arguments]:
    yield make(255, 123), 0.5
    yield make(3, scale=30.0), -1.0
    yield make.strided(5, 9), 2.0
    yield make.transposed(3, 8, 5), 0.0
    yield make(), 1.0
    yield make(0, 3), 1.0


def _benchmarks(make: Make) -> Iterator[tuple[str, Arguments]]:
    for rows, size in SIZES:
        yield f"{rows}x{size}", (make(rows, size), 1.0)


def _bad_inputs(make: Make) -> Iterator[BadInput]:
    x = make(4, 8)
    yield BadInput((x.to(torch.int64), 1.0), "x must be float32.*got int64")


OPERATORS = (
    Operator(
        name="exp_add",
        reference=_reference,
        fake=_fake,
        shapes=("x",),
        backward=_backward,
        sharding=Elementwise(),
        samples=_samples,
        bad_inputs=_bad_inputs,
        benchmarks=_benchmarks,
        function=exp_add,
    ),
)

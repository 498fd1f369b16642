"""exp(x) + c"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fusewheel._elementwise import SIZES, empty_output
from fusewheel._operator import Arguments, BadInput, Make, Operator
from fusewheel._sharding import Elementwise


def exp_add(x: Tensor, c: float) -> Tensor:
    """`exp(x) + c` in one pass over memory, rounded once.

    Args:
        x: any shape; float32, bfloat16, float16 or float64.
        c: added to every exponential.

    Returns:
        A tensor of x's shape and dtype.

    Raises:
        RuntimeError: the dtype is not floating, or `x` is sparse.
    """
    result: Tensor = torch.ops.fusewheel.exp_add(x, c)
    return result


def _reference(x: Tensor, c: float) -> Tensor:
    return torch.exp(x) + c


def _fake(x: Tensor, c: float) -> Tensor:
    return empty_output(x)


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
    yield BadInput((None, 1.0), r"x\b.*(None|NoneType)")
    if x.dtype == torch.float32:
        yield BadInput((x.to_sparse(), 1.0), "x must be a dense tensor")


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

"""What elementwise operators share: the layout of their output and the inputs that try them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from fusewheel._operator import BadInput, Make


def is_dense(tensor: Tensor) -> bool:
    """Whether the elements fill a block of memory without gaps or overlap."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 0:
            return False
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def empty_rows(x: Tensor) -> Tensor:
    """Rows like those of x: in its layout where it is dense and a row's elements are neighbours."""
    if is_dense(x) and x.stride(-1) == 1:
        return x.new_empty_strided(x.shape, x.stride())
    return x.new_empty(x.shape)


def empty_output(*inputs: Tensor) -> Tensor:
    """The output of an elementwise kernel: dense inputs that agree give it their layout."""
    first = inputs[0]
    if any(t.dtype != first.dtype for t in inputs):
        raise RuntimeError(f"the inputs must have one dtype, got {[t.dtype for t in inputs]}")
    agree = all(t.shape == first.shape and t.stride() == first.stride() for t in inputs)
    if agree and is_dense(first):
        return torch.empty_strided(
            first.shape, first.stride(), dtype=first.dtype, device=first.device
        )
    shape = torch.broadcast_shapes(*(t.shape for t in inputs))
    return torch.empty(shape, dtype=first.dtype, device=first.device)


def pairs(make: Make) -> Iterator[tuple[Tensor, Tensor]]:
    """Two operands: equal shapes, broadcasting, odd sizes, gaps, transposes, nothing, a scalar."""
    yield make(255, 123), make(255, 123)
    yield make(3, 1, 7), make(5, 1)
    yield make(1), make(4, 33)
    yield make(), make(2, 3)
    yield make.strided(7, 19), make.strided(7, 19)
    yield make.transposed(2, 17, 9), make.transposed(2, 17, 9)
    yield make.transposed(6, 8), make(6, 8)
    yield make(2, 1, 8).expand(2, 5, 8), make(5, 8)
    yield make(0, 4), make(1, 4)
    yield make(2, 3, 4, 5, 6), make(4, 1, 6)


SIZES = ((8, 576), (512, 2048), (4096, 4096))


def bad_pairs(make: Make, first: str, second: str, *rest: float) -> Iterator[BadInput]:
    """Two operands that do not go together, or are none."""
    a = make(4, 8)
    yield BadInput((a.to(torch.int32), a, *rest), f"{first} must be float32.*got int32")
    yield BadInput((a.to(torch.complex64), a, *rest), f"{first} must be float32.*got complex64")
    other = torch.float64 if a.dtype != torch.float64 else torch.float32
    yield BadInput((a, a.to(other), *rest), f"{second} must have the dtype of {first}")
    yield BadInput((a, make(4, 7), *rest), rf"{second} of shape \[4, 7\] must broadcast")
    yield BadInput((None, a, *rest), rf"{first}\b.*(None|NoneType)")
    yield BadInput((a, None, *rest), rf"{second}\b.*(None|NoneType)")
    if a.dtype == torch.float32:
        yield BadInput((a.to_sparse(), a, *rest), f"{first} must be a dense tensor")
        yield BadInput((a, a.to_sparse(), *rest), f"{second} must be a dense tensor")

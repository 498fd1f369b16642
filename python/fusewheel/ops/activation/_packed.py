"""What operators share whose two operands are the halves of one tensor, `[..., gate | up]`."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from fusewheel._operator import BadInput, Make


def halves(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Views of the two halves of the last dimension."""
    half = packed.shape[-1] // 2
    return packed[..., :half], packed[..., half:]


def empty_half(op: str, packed: Tensor) -> Tensor:
    """The forward operator's output."""
    torch._check(
        packed.dim() > 0 and packed.shape[-1] % 2 == 0,
        lambda: f"{op}: gate_up must have a last dimension that halves, got {list(packed.shape)}",
    )
    return packed.new_empty((*packed.shape[:-1], packed.shape[-1] // 2))


def empty_packed(op: str, grad: Tensor, packed: Tensor) -> Tensor:
    """The backward operator's output."""
    half = empty_half(op, packed)
    torch._check(
        grad.shape == half.shape,
        lambda: f"{op}: grad must have shape {list(half.shape)}, got {list(grad.shape)}",
    )
    return packed.new_empty(packed.shape)


def packed_samples(make: Make) -> Iterator[Tensor]:
    """Packed tensors: contiguous, with gaps between rows or elements, transposed, empty."""
    yield make(255, 2 * 123)
    yield make(2, 3, 2 * 8)
    yield make.strided(2, 5, 2 * 9)
    yield make(4, 2 * 40)[:, 3:69]
    yield make.transposed(2, 9, 2 * 5)
    yield make(3, 1, 2 * 4).expand(3, 5, 8)
    yield make(2 * 33)
    yield make(3, 2)
    yield make(4, 0)
    yield make(0, 2 * 4)


def bad_packed(make: Make, *rest: bool) -> Iterator[BadInput]:
    """What has no halves, or is no tensor of floating numbers."""
    x = make(4, 8)
    yield BadInput((x.int(), *rest), "gate_up must be float32.*got int32")
    yield BadInput((x[:, :7], *rest), r"gate_up must have a last dimension that halves.*\[4, 7\]")
    yield BadInput((make(), *rest), r"gate_up must have a last dimension that halves.*\[\]")
    yield BadInput((None, *rest), r"gate_up\b.*(None|NoneType)")
    if x.dtype == torch.float32:
        yield BadInput((x.to_sparse(), *rest), "gate_up must be a dense tensor")


def bad_packed_backward(make: Make, *rest: bool) -> Iterator[BadInput]:
    """The same, and gradients that do not fit."""
    grad = make(4, 4)
    for bad in bad_packed(make, *rest):
        yield BadInput((grad, *bad.arguments), bad.message)
    x = make(4, 8)
    other = torch.float64 if x.dtype != torch.float64 else torch.float32
    yield BadInput((x, x, *rest), r"grad must have shape \[4, 4\].*got \[4, 8\]")
    yield BadInput((grad.to(other), x, *rest), "grad must have the dtype of gate_up")
    yield BadInput((None, x, *rest), r"grad\b.*(None|NoneType)")

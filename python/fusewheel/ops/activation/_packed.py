"""Helpers of the operators whose two operands are the halves of one tensor, `[..., gate | up]`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from fusewheel.dispatch.operator import BadInput, Make
from fusewheel.dispatch.promise import fail
from fusewheel.ops._checks import check, check_floating, check_matches, check_sizes


def halves(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Views of the two halves of the last dimension."""
    half = packed.shape[-1] // 2
    return packed[..., :half], packed[..., half:]


def half_shape(op: str, packed: Tensor) -> list[Any]:
    """The shape of a half."""
    check_floating(op, ("gate_up", packed))
    shape = list(packed.shape)
    message = f"gate_up must have a last dimension that halves, [..., gate | up], got shape {shape}"
    if not shape:
        fail(op, message)
    check(op, shape[-1] % 2 == 0, message)
    return [*shape[:-1], shape[-1] // 2]


def empty_half(op: str, packed: Tensor) -> Tensor:
    """The forward operator's output."""
    return packed.new_empty(half_shape(op, packed))


def empty_packed(op: str, grad: Tensor, packed: Tensor) -> Tensor:
    """The backward operator's output."""
    shape = half_shape(op, packed)
    check_matches(op, ("grad", grad), ("gate_up", packed))
    check_sizes(op, ("grad", grad), shape, "half of the packed tensor")
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
    """Inputs whose last dimension has no two halves, or that are not floating tensors."""
    x = make(4, 8)
    yield BadInput((x.int(), *rest), "gate_up must be float32.*got int32")
    yield BadInput((x[:, :7], *rest), r"gate_up must have a last dimension that halves.*\[4, 7\]")
    yield BadInput((make(), *rest), r"gate_up must have a last dimension that halves.*\[\]")


def bad_packed_backward(make: Make, *rest: bool) -> Iterator[BadInput]:
    """The inputs of `bad_packed` for the backward operator, and gradients that do not fit."""
    grad = make(4, 4)
    for bad in bad_packed(make, *rest):
        yield BadInput((grad, *bad.arguments), bad.message)
    x = make(4, 8)
    other = torch.float64 if x.dtype != torch.float64 else torch.float32
    yield BadInput((x, x, *rest), r"grad must have shape \[4, 4\].*got \[4, 8\]")
    yield BadInput((grad.to(other), x, *rest), "grad must have the dtype of gate_up")

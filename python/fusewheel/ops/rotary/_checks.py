"""What rope refuses, in the words of its kernels (`fusewheel/rope.h`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fusewheel.dispatch.promise import Argument, check_same_device, fail
from fusewheel.ops._checks import check, check_floating, check_matches, check_sizes, describe


def check_rope(
    op: str,
    heads: Sequence[Argument],
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None,
) -> None:
    """Raises an error unless heads, tables and positions fit together."""
    first = heads[0]
    for argument in heads:
        check_floating(op, argument)
        check_matches(op, argument, first)
        if argument[1].dim() != 4:
            shape = list(argument[1].shape)
            message = "must have 4 dimensions (batch, heads, length, head size), got shape"
            fail(op, f"{argument[0]} {message} {shape}")
    batch, _, length, size = first[1].shape
    for name, tensor in heads[1:]:
        expected = (batch, tensor.shape[1], length, size)
        check_sizes(op, (name, tensor), expected, "q's batch, length and head size")
    if positions is not None:
        _check_positions(op, positions, first)
    check_matches(op, ("cos", cos), first)
    check_matches(op, ("sin", sin), first)
    shape = list(cos.shape)
    message = f"cos must have an even last dimension, at most the head size {size}, got shape"
    if not shape:
        fail(op, f"{message} []")
    check(op, (shape[-1] <= size) & (shape[-1] % 2 == 0), f"{message} {shape}")
    for table in (("cos", cos), ("sin", sin)):
        if positions is not None:
            _check_table_of_positions(op, table, cos)
        else:
            _check_table(op, table, (batch, length, shape[-1]))


def _check_positions(op: str, positions: Tensor, q: Argument) -> None:
    if positions.dtype != torch.int64:
        fail(op, f"positions must be int64, got {describe(positions.dtype)}")
    check_same_device(op, ("positions", positions), q)
    batch, _, length, _ = q[1].shape
    message = (
        f"positions must have shape {[batch, length]} (batch or 1, length) or without the batch, "
        f"got {list(positions.shape)}"
    )
    _check_batched(op, positions.shape, (batch, length), message)


def _check_table(op: str, table: Argument, expected: Sequence[Any]) -> None:
    name, tensor = table
    message = (
        f"{name} must have shape {list(expected)} (batch or 1, length, cos's last dimension) or "
        f"without the batch, got {list(tensor.shape)}"
    )
    _check_batched(op, tensor.shape, expected, message)


def _check_batched(op: str, shape: Sequence[Any], expected: Sequence[Any], message: str) -> None:
    """Raises an error unless the shape is expected. Its first dimension may be 1 or absent."""
    batch, *rest = expected
    if len(shape) not in (len(rest), len(expected)):
        fail(op, message)
    if len(shape) == len(expected):
        check(op, (shape[0] == 1) | (shape[0] == batch), message)
    for size, wanted in zip(shape[-len(rest) :], rest, strict=True):
        check(op, size == wanted, message)


def _check_table_of_positions(op: str, table: Argument, cos: Tensor) -> None:
    name, tensor = table
    message = (
        f"{name} must have shape [rows, {cos.shape[-1]}] where positions are given, the same rows "
        f"for cos and sin, got {list(tensor.shape)}"
    )
    if cos.dim() != 2 or tensor.dim() != 2:
        fail(op, message)
    for size, wanted in zip(tensor.shape, cos.shape, strict=True):
        check(op, size == wanted, message)

"""What operators over groups of rows share: which rows a group has, and what they refuse."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fusewheel._torch.functorch import in_transform, is_plain
from fusewheel.dispatch.promise import Argument, check_same_device, fail
from fusewheel.ops._checks import (
    check,
    check_sizes,
    check_weight_dtype,
    describe,
)


class Rows(NamedTuple):
    """The rows of a group.

    Attributes:
        part: where they are among all.
        own: which of these are the group's, `[rows, 1]`; None if all are.
    """

    part: slice
    own: Tensor | None

    def of(self, x: Tensor) -> Tensor:
        """The group's rows of `x`, or all rows with zeros in the place of those of others."""
        rows = x[self.part]
        return rows if self.own is None else torch.where(self.own, rows, 0)

    def place(self, y: Tensor, values: Tensor) -> Tensor:
        """`y` with these values in the group's rows."""
        if self.own is None:
            return torch.cat((y[: self.part.start], values, y[self.part.stop :]))
        return torch.where(self.own, values, y)


def groups_of(op: str, ends: Tensor, x: Argument) -> list[Rows]:
    """The rows of each group. Raises the errors of the kernel about the numbers.

    Where a program is traced or transformed, numbers cannot be read; there each group has a mask.
    """
    name, rows = x[0], x[1].shape[0]
    if in_transform() or not is_plain(ends) or ends.is_meta:
        at = torch.arange(rows, device=ends.device).unsqueeze(-1)
        first = torch.cat((ends.new_zeros(1), ends))
        return [Rows(slice(None), (first[e] <= at) & (at < ends[e])) for e in range(ends.shape[0])]
    found, before = [], 0
    for end in ends.tolist():
        if end < before or end > rows:
            fail(
                op,
                f"ends must not fall and be from 0 to {rows}, the rows of {name}, got {end} after "
                f"{before}",
            )
        found.append(Rows(slice(before, end), None))
        before = end
    return found


def rows_in_groups(ends: Tensor, rows: int) -> int:
    """How many rows are in a group; all of them where numbers cannot be read."""
    if in_transform() or not is_plain(ends) or ends.is_meta:
        return rows
    return int(ends[-1]) if len(ends) else 0


def check_ends(op: str, ends: Tensor, groups: int, x: Argument) -> None:
    """Raises an error unless there is an integer for each group."""
    check_same_device(op, ("ends", ends), x)
    if ends.dtype not in (torch.int32, torch.int64):
        fail(op, f"ends must be int32 or int64, got {describe(ends.dtype)}")
    check_sizes(op, ("ends", ends), (groups,), "the groups of the weight")


def check_weights(op: str, weight: Argument, x: Argument) -> None:
    """Raises an error unless there is a floating matrix for each group."""
    check_same_device(op, weight, x)
    check_weight_dtype(op, weight, x)
    if weight[1].dim() != 3:
        shape = list(weight[1].shape)
        message = f"{weight[0]} must have shape [groups, out features, in features], got {shape}"
        fail(op, message)


def check_group_rows(op: str, x: Argument, features: int, what: str) -> None:
    """Raises an error unless `x` is a matrix with so many columns."""
    name, shape = x[0], list(x[1].shape)
    message = f"{name} must have shape [rows, {features}] ({what}), got {shape}"
    if len(shape) != 2:
        fail(op, message)
    check(op, shape[1] == features, message)

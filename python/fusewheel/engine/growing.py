"""Appends rows to a cache of keys or values without copying the rows that are there.

`append` computes ``torch.cat([past, new], -2)``. Its result is a view of a larger allocation with
free rows. The next `append` writes its rows behind that view, and copies nothing:

* An allocation knows how many of its rows are taken. Rows that are taken never change. Of several
  calls that continue the same rows one gets the rows behind them; the others copy.
* Each result is a copy-on-write tensor. Who writes to it in place gets memory of its own, so that
  no result changes another one.
* A view of a result, such as a sliding window, can be continued too, if it ends with the last row
  that is taken.

The step ``engine::append`` of a program does the work, see ``cpu_kernels/engine/append.h``.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from fusewheel._torch.autograd import in_forward_mode
from fusewheel._torch.copy_on_write import AVAILABLE, lazy_clone
from fusewheel.engine.operators import step_letters
from fusewheel.engine.program import Number, Program, ProgramWriter

STEP = "engine::append"
_KEPT = "_fusewheel_kept"


def can_append() -> bool:
    """Whether the CPU kernels are loaded, and this torch has copy-on-write tensors."""
    return AVAILABLE and step_letters(STEP) is not None


def append(past: Tensor, new: Tensor) -> Tensor:
    """``torch.cat([past, new], -2)``, as a view with room for more rows behind it.

    Args:
        past: ``[B, H, L, D]``, or an empty tensor of one dimension; on the CPU.
        new: ``[B, H, N, D]``; dtype and device of `past`.

    Returns:
        ``[B, H, L + N, D]``, with the rows outermost in memory: its strides are
        ``(H * D, D, B * H * D, 1)``, so it is not contiguous.

    Raises:
        RuntimeError: if `past` and `new` differ in another size than the number of rows.
    """
    if in_forward_mode():  # tangents have to follow
        return torch.cat([past, new], -2)
    rows, kept = _program(past.dtype, past.dim())(past, new)
    return keep(rows, kept, past)


def keep(rows: Tensor, kept: Tensor, past: Tensor) -> Tensor:
    """The first result of the step ``engine::append``, which keeps a second tensor over its memory.

    Then a write in place to it copies, also where it is the only cache in its allocation. Otherwise
    an array of NumPy could show the memory that the next `append` shares.

    Args:
        rows: the first result.
        kept: the second one, which is `rows` where no new allocation was needed.
        past: the cache that was continued.
    """
    if kept is rows:
        of_past: Tensor | None = getattr(past.untyped_storage(), _KEPT, None)
        # Without it, `past` is not a tensor that was returned, but shares the memory of one.
        kept = lazy_clone(rows) if of_past is None else of_past
    setattr(rows.untyped_storage(), _KEPT, kept)
    return rows


@functools.cache
def _program(dtype: torch.dtype, rank: int) -> Program:
    """A program of one step, for a cache with `rank` dimensions."""
    writer = ProgramWriter()

    def numbers(kind: str, index: int, count: int) -> list[Number]:
        return [writer.number(kind, index, dim) for dim in range(count)]

    sizes, more = numbers("size", 0, rank), numbers("size", 1, 4)
    past = writer.input(dtype, sizes, numbers("stride", 0, rank))
    new = writer.input(dtype, more, numbers("stride", 1, 4))
    batch, heads, added, size = more
    head = writer.number("multiply", heads, size)
    strides = head, size, writer.number("multiply", batch, head), 1
    length = writer.number("add", sizes[2], added) if rank == 4 else added
    rows, kept = (writer.result(dtype, (batch, heads, length, size), strides) for _ in range(2))
    writer.step(STEP, (past, new), (rows, kept), "append")
    return writer.finish([rows, kept])

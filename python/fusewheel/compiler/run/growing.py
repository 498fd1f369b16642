"""Appends rows to a cache of keys or values without copying the rows that are there.

`append` computes ``torch.cat([past, new], -2)``. Its result is a view of a larger allocation, the
`Room`. The next `append` writes its rows behind that view, and copies nothing:

* A room knows how many of its rows are taken. Rows that are taken never change. Of several calls
  that continue the same rows one gets the rows behind them, under a lock; the others copy.
* Each result is a copy-on-write tensor. Who writes to it in place gets memory of its own, so that
  no result changes another one.
* A result's storage knows its room. So a view of a result, such as a sliding window, can be
  continued too, if it ends with the last row that is taken.
"""

from __future__ import annotations

import threading

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from fusewheel._torch.autograd import in_forward_mode
from fusewheel._torch.copy_on_write import lazy_clone, memory_of

_ROOM = "_fusewheel_room"
# The smallest number of free rows of a new room.
LEAST = 64


def capacity_for(rows: int) -> int:
    """The rows of a room that is made for `rows` rows: a half more, so that few copies are made."""
    return rows + max(LEAST, rows // 2)


class Room:
    """An allocation ``[B, H, capacity, D]`` of which the first rows are taken.

    Attributes:
        taken: the number of rows that are taken.
    """

    def __init__(self, like: Tensor, rows: int) -> None:
        batch, heads, _, size = like.shape
        self._capacity = capacity_for(rows)
        # Zeros, so that a saved cache holds nothing that was in this memory before.
        with torch.inference_mode(False):  # the next call may be outside of inference mode
            self._owner = like.new_zeros((batch, heads, self._capacity, size))
            # The same memory. Writing through it is no write to the copies of the owner.
            self._memory = from_dlpack(self._owner)
        self._strides = self._owner.stride()
        self._address = memory_of(self._owner)
        self._lock = threading.Lock()
        self.taken = 0

    def extended(self, past: Tensor, new: Tensor) -> Tensor | None:
        """`past` and `new`, if `past` is in this room and there are free rows behind it."""
        start = self._start(past)
        if start is None:
            return None
        end, more = start + past.shape[2], new.shape[2]
        return self._result(start, end + more) if self._write(new, end, end + more) else None

    def _start(self, past: Tensor) -> int | None:
        """The first row of `past`; None if it is not a view of whole rows of this room."""
        owner = self._owner
        if past.stride() != self._strides or past.dtype != owner.dtype or past.dim() != 4:
            return None
        (batch, heads, _, size), whole = past.shape, owner.shape
        start, rest = divmod(int(past.storage_offset()), self._strides[2] or 1)
        same = (batch, heads, size) == (whole[0], whole[1], whole[3]) and rest == 0
        # Who wrote to it in place has other memory since then.
        return start if same and memory_of(past) == self._address else None

    def _write(self, new: Tensor, start: int, end: int) -> bool:
        with self._lock:
            if start != self.taken or end > self._capacity:
                return False
            self.taken = end
        self._memory.narrow(2, start, end - start).copy_(new)
        return True

    def fill(self, parts: list[Tensor]) -> Tensor:
        """Take the first rows of an empty room."""
        for part in parts:
            self._write(part, self.taken, self.taken + part.shape[2])
        return self._result(0, self.taken)

    def _result(self, start: int, end: int) -> Tensor:
        whole = lazy_clone(self._owner)
        setattr(whole.untyped_storage(), _ROOM, self)
        return whole.narrow(2, start, end - start)


def append(past: Tensor, new: Tensor) -> Tensor:
    """``torch.cat([past, new], -2)``, as a view with room for more rows behind it.

    Args:
        past: ``[B, H, L, D]``, or an empty tensor of one dimension.
        new: ``[B, H, N, D]``; dtype and device of `past`.

    Returns:
        ``[B, H, L + N, D]``. Its strides are those of the room, so it is not contiguous.
    """
    if in_forward_mode():  # tangents have to follow
        return torch.cat([past, new], -2)
    room = getattr(past.untyped_storage(), _ROOM, None)
    if room is not None and (result := room.extended(past, new)) is not None:
        return result
    parts = [new] if past.dim() == 1 else [past, new]
    return Room(new, sum(part.shape[2] for part in parts)).fill(parts)

"""Tensors behind which nothing can be read: a kernel that does ends the process."""

from __future__ import annotations

import ctypes
import mmap

import torch
from torch import Tensor

NO_ACCESS = 0  # PROT_NONE


def at_the_edge(tensor: Tensor) -> Tensor:
    """A copy whose memory ends where a page begins that cannot be read; for Linux and macOS."""
    storage = tensor.untyped_storage()
    size = storage.nbytes()
    if not size:
        return tensor
    whole = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, whole + mmap.PAGESIZE)
    behind = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(memory)) + whole)
    if ctypes.CDLL(None, use_errno=True).mprotect(behind, mmap.PAGESIZE, NO_ACCESS):
        raise OSError(ctypes.get_errno(), "mprotect")
    held = torch.frombuffer(memory, dtype=torch.uint8, count=size, offset=whole - size)
    held.untyped_storage().copy_(storage)
    copied = torch.empty(0, dtype=tensor.dtype)
    copied.set_(held.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())
    return copied

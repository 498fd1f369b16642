"""Tensors that share memory until one of them is written to, which then gets memory of its own."""

from __future__ import annotations

from torch import Tensor

from fusewheel._torch.find import find

_PURPOSE = "keep a cache that grows in place"
_lazy_clone = find("torch._lazy_clone", _PURPOSE, otherwise=None)
_address = find("torch._C._data_address", _PURPOSE, otherwise=None)

# Whether this torch has such tensors.
AVAILABLE = None not in (_lazy_clone, _address)


def lazy_clone(tensor: Tensor) -> Tensor:
    """A copy that shares the memory of a tensor until one of the two is written to."""
    copy: Tensor = _lazy_clone(tensor)
    return copy


def memory_of(tensor: Tensor) -> int:
    """Where the memory of a tensor begins. Unlike ``data_ptr()`` this does not count as a write."""
    address: int = _address(tensor)
    return address

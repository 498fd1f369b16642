"""Tensors that share memory until one of them is written to, which then gets memory of its own."""

from __future__ import annotations

from torch import Tensor

from fusewheel._torch.find import find

_lazy_clone = find("torch._lazy_clone", "keep a cache that grows in place", otherwise=None)
# Whether this torch has such tensors; the engine makes them by its operator ``aten::_lazy_clone``.
AVAILABLE = _lazy_clone is not None


def lazy_clone(tensor: Tensor) -> Tensor:
    """A tensor that shares the memory of `tensor` until one of the two is written to."""
    assert _lazy_clone is not None
    clone: Tensor = _lazy_clone(tensor)
    return clone

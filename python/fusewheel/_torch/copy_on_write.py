"""Tensors that share memory until one of them is written to, which then gets memory of its own."""

from __future__ import annotations

from fusewheel._torch.find import find

# Whether this torch has such tensors; the engine makes them by its operator ``aten::_lazy_clone``.
AVAILABLE = (
    find("torch._lazy_clone", "keep a cache that grows in place", otherwise=None) is not None
)

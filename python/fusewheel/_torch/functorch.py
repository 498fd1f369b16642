"""`torch.func`: what transform is active, and the batches of `vmap`."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from fusewheel._torch.find import find

_PURPOSE = "call a kernel once for all samples of vmap"
_peek = find("torch._C._functorch.peek_interpreter_stack", _PURPOSE, None)
_transforms = find("torch._C._functorch.TransformType", _PURPOSE, None)
_add_batch_dim = find("torch._C._functorch._add_batch_dim", _PURPOSE, None)
_unwrap_batched = find("torch._C._functorch._unwrap_batched", _PURPOSE, None)
_current = find(
    "torch._functorch.pyfunctorch.retrieve_current_functorch_interpreter", _PURPOSE, None
)
_HELD = (
    find("torch._C._functorch.is_batchedtensor", "reuse the memory of a gradient", None),
    find("torch._C._functorch.is_legacy_batchedtensor", "reuse the memory of a gradient", None),
)
_COMPLETE = None not in (_peek, _transforms, _add_batch_dim, _unwrap_batched, _current)


def in_transform() -> bool:
    """Whether a transform of `torch.func` is active; True if it cannot be found out."""
    return _peek is None or _peek() is not None


def in_vmap() -> bool:
    """Whether the innermost transform is `vmap`; False if it cannot be found out."""
    if not _COMPLETE:
        return False
    layer = _peek()
    return layer is not None and layer.key() == _transforms.Vmap


def is_batch(tensor: Tensor) -> bool:
    """Whether a tensor stands for the samples of a batch; True if it cannot be found out."""
    return any(test is None or test(tensor) for test in _HELD)


class Batching:
    """The innermost `vmap`.

    Attributes:
        level: its number.
        size: the number of samples.
    """

    def __init__(self) -> None:
        self._interpreter: Any = _current()
        self.level: int = self._interpreter.level()
        self.size: int = self._interpreter.batch_size()

    def unwrap(self, tensor: Tensor) -> tuple[Tensor, int | None]:
        """A tensor of all samples, and the dimension they lie in; None if all share it."""
        value, dim = _unwrap_batched(tensor, self.level)
        return value, dim

    def wrap(self, tensor: Tensor, dim: int) -> Tensor:
        """The reverse of `unwrap`."""
        wrapped: Tensor = _add_batch_dim(tensor, dim, self.level)
        return wrapped

    def outside(self) -> AbstractContextManager[Any]:
        """A block outside of this `vmap`."""
        block: AbstractContextManager[Any] = self._interpreter.lower()
        return block


def is_plain(tensor: Tensor) -> bool:
    """Whether a tensor is neither a subclass nor a batch."""
    return type(tensor) is torch.Tensor and not is_batch(tensor)

"""Carries the tensors of a call to another device, and the results back.

Operator tests make their tensors in the CPU's memory. With `carried` as the operators' kernels for
the CPU they test the kernels of the other device, and no test has to know of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class Carrier:
    """Copies of tensors on another device.

    Each has a copy of the whole memory that its tensor is a part of: offsets, strides and gaps stay
    as they are, and tensors that share memory share it there too.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._memories: dict[int, tuple[Tensor, Tensor]] = {}

    def there(self, value: Any) -> Any:
        """The copy of a tensor, or of each tensor of a list; anything else as it is."""
        if isinstance(value, list | tuple):
            return [self.there(item) for item in value]
        if not isinstance(value, Tensor) or value.device.type != "cpu":
            return value
        memory = self._memory(value)
        found = torch.empty(0, dtype=value.dtype, device=self._device)
        return found.set_(
            memory.untyped_storage(), value.storage_offset(), value.size(), value.stride()
        )

    def write_back(self) -> None:
        """Copies all memory back, with what was written into it."""
        for here, there in self._memories.values():
            here.copy_(there)

    def _memory(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._memories:
            here = torch.empty(0, dtype=torch.uint8).set_(storage)
            self._memories[storage.data_ptr()] = here, here.to(self._device, copy=True)
        return self._memories[storage.data_ptr()][1]


def back(result: Any) -> Any:
    """A result, or each of several, in the CPU's memory with the same strides."""
    if isinstance(result, tuple | list):
        return tuple(back(item) for item in result)
    if not isinstance(result, Tensor):
        return result
    return torch.empty_strided(result.shape, result.stride(), dtype=result.dtype).copy_(result)


def carried(kernel: Callable[..., Any], device: str, writes: bool) -> Callable[..., Any]:
    """A kernel for CPU tensors that runs another one on `device`.

    Args:
        kernel: what runs there.
        device: whose memory it works in.
        writes: whether it writes to an argument.
    """

    def run(*arguments: Any) -> Any:
        carrier = Carrier(device)
        result = kernel(*(carrier.there(argument) for argument in arguments))
        if writes:
            carrier.write_back()
        return back(result)

    return run

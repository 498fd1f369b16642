"""Tensors that do not lie in a row."""

from __future__ import annotations

from typing import Any

import torch
from doctor.defects.declare import Twin, planted, random
from fusewheel.doctor import traps
from torch import Tensor


def walk(x: Tensor) -> Tensor:
    """As many elements as there are, one after the other in memory."""
    strides = torch.empty(x.shape, device="meta").stride()
    return x.as_strided(x.shape, strides)


@planted("gaps", "permuted", trap=traps.STRIDES)
def ignores_strides(twin: Twin) -> Any:
    return twin.operator(lambda x: (walk(x) if twin.faulty else x) * 2)


@planted("permuted", trap=traps.STRIDES)
def ignores_order(twin: Twin) -> Any:
    """Gaps between the rows are seen, but not that a column may be a row in memory."""

    def kernel(x: Tensor) -> Tensor:
        dense = x.numel() == x.untyped_storage().nbytes() // x.itemsize
        return (walk(x) if dense and twin.faulty else x) * 2

    return twin.operator(kernel)


@planted("expanded", trap=traps.STRIDES)
def reads_past_a_row(twin: Twin) -> Any:
    def kernel(x: Tensor) -> Tensor:
        if x.dim() and x.stride(0) == 0 and twin.faulty:
            return x * torch.arange(x.shape[0])[:, None]
        return x * 2

    return twin.operator(kernel)


@planted("overlapping", trap=traps.STRIDES)
def result_with_the_same_strides(twin: Twin) -> Any:
    """Its rows overwrite each other where those that it reads overlap."""

    def kernel(x: Tensor) -> Tensor:
        out = torch.empty(x.shape, dtype=x.dtype)
        if twin.faulty and 0 < x.stride(0) < x.shape[-1]:
            out = torch.empty(x.untyped_storage().nbytes() // x.itemsize, dtype=x.dtype)
            out = out.as_strided(x.shape, x.stride())
        for i, row in enumerate(x):
            out[i] = row * (i + 1)
        return out

    return twin.operator(kernel)


def _in_place(twin: Twin, kernel: Any) -> Any:
    return twin.operator(kernel, "(Tensor(a!) x) -> ()", fake=lambda x: None)


@planted("written", trap=traps.STRIDES, samples=[(random(2, 1),)])
def writes_into_expanded(twin: Twin) -> Any:
    def kernel(x: Tensor) -> None:
        if not twin.faulty:
            x.mul_(2)  # which refuses
            return
        for row in x:
            row.mul_(2)

    return _in_place(twin, kernel)


@planted("written", trap=traps.STRIDES, samples=[(random(3, 4),)])
def clears_the_gaps(twin: Twin) -> Any:
    """Clears all of the memory between the first element and the last."""

    def kernel(x: Tensor) -> None:
        result = x * 2
        if twin.faulty:
            last = sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
            x.as_strided((last + 1,), (1,)).zero_()
        x.copy_(result)

    return _in_place(twin, kernel)


@planted("written", trap=traps.STRIDES, samples=[(random(3, 4),)])
def writes_the_next(twin: Twin) -> Any:
    """Doubles what lies in memory from the first element on."""
    return _in_place(twin, lambda x: ((walk(x) if twin.faulty else x).mul_(2), None)[1])

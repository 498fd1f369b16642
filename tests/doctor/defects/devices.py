"""What only a GPU shows; without one, on what stands in for it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from doctor.defects.declare import Twin, planted, random
from doctor.defects.modes import mixes_what_is_cast
from fusewheel.doctor import traps
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Graph(TorchDispatchMode):
    """Remembers the kernels that run on the CPU, and runs them again over the same memory."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("operation not permitted when stream is capturing")
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result))
        return result

    def replay(self) -> None:
        for func, args, kwargs, result in self.calls:
            again = func(*args, **kwargs)
            for old, new in zip(tree_leaves(result), tree_leaves(again), strict=True):
                if isinstance(old, Tensor):
                    old.copy_(new)


@contextlib.contextmanager
def gpu() -> Iterator[None]:
    """A GPU: the machine's, or as much of one as the columns use."""
    if torch.cuda.is_available():
        yield
        return
    with (
        mock.patch.object(torch.Tensor, "cuda", Tensor.clone),
        mock.patch.multiple(
            torch.cuda,
            is_available=lambda: True,
            Stream=mock.MagicMock(),
            current_stream=mock.MagicMock(),
            stream=contextlib.nullcontext,
            CUDAGraph=Graph,
            graph=lambda graph: graph,
        ),
    ):
        yield


@planted("CUDA graph", trap=traps.GRAPHED, samples=[(random(3, 4),)], where=gpu)
def waits_for_a_value(twin: Twin) -> Any:
    return lambda x: x * (x.sum().item() if twin.faulty else x.sum())


@planted("CUDA graph", trap=traps.GRAPHED, samples=[(random(3, 4),)], where=gpu)
def computes_beside_the_stream(twin: Twin) -> Any:
    def function(x: Tensor) -> Tensor:
        return torch.from_numpy(x.cpu().numpy() * 2) if twin.faulty else x * 2

    return function


planted("CUDA autocast", trap=traps.AUTOCAST, samples=[(random(4, 4),)], where=gpu)(
    mixes_what_is_cast
)

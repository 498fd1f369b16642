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


class Stream:
    """Knows which streams it waited for."""

    def __init__(self) -> None:
        self.waited: set[Stream] = set()

    def wait_stream(self, other: Stream) -> None:
        self.waited.add(other)


class WarmUp(TorchDispatchMode):
    """Counts kernels: libraries take their memory at the first, which no graph may capture."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.kernels += 1
        return func(*args, **(kwargs or {}))


class Streams:
    """A stream that is current, and those beside it: each must wait for the other."""

    def __init__(self) -> None:
        self.current = Stream()
        self.beside: set[Stream] = set()
        self.warm_up = WarmUp()

    @contextlib.contextmanager
    def use(self, stream: Stream) -> Iterator[None]:
        assert self.current in stream.waited, "the stream beside did not wait"
        self.beside.add(stream)
        with self.warm_up:
            yield

    def capture(self, graph: Graph) -> Graph:
        assert self.beside and self.beside <= self.current.waited, "capture did not wait"
        assert self.warm_up.kernels, "nothing ran before the capture"
        return graph


@contextlib.contextmanager
def gpu() -> Iterator[None]:
    """A GPU: the machine's, or as much of one as the columns use."""
    if torch.cuda.is_available():
        yield
        return
    streams = Streams()
    with (
        mock.patch.object(torch.Tensor, "cuda", Tensor.clone),
        mock.patch.multiple(
            torch.cuda,
            is_available=lambda: True,
            Stream=Stream,
            current_stream=lambda: streams.current,
            stream=streams.use,
            CUDAGraph=Graph,
            graph=streams.capture,
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

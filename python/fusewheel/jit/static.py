"""Runs parts of a graph in PyTorch's static runtime, which plans memory."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor

from fusewheel.jit.graph.regions import with_regions, without_module
from fusewheel.jit.guarded import guarded_function
from fusewheel.jit.result import Lowered
from fusewheel.jit.support import TorchScriptError


class StaticModel(torch.nn.Module):
    """Runs parts of a graph without control flow in PyTorch's static runtime, on a CPU.

    For inputs like the example, these parts run in the static runtime, and what lies between them
    runs in the TorchScript interpreter. All other inputs run in the interpreter. Calls from several
    threads take turns, because the runtime has one set of buffers. Results are inference tensors,
    as under `torch.inference_mode`: clone one before autograd records it. The module cannot be
    saved; `scripted` can.

    Args:
        lowered: a module with the assumptions about its inputs.

    Attributes:
        scripted: the same as a TorchScript module, which runs in the interpreter.

    Raises:
        TorchScriptError: the static runtime cannot run the graph; the message says why.
    """

    def __init__(self, lowered: Lowered) -> None:
        super().__init__()
        self.scripted = lowered.module
        self._arguments = lowered.arguments
        self._names = [argument.name for argument in lowered.arguments]
        self._run = _function(lowered)
        self._lock = threading.Lock()
        self.eval()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's result for these inputs."""
        given = self._bound(args, kwargs)
        if given is None:
            return self.scripted(*args, **kwargs)
        with self._lock:
            return self._run(*given)

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
        """All inputs in order; None if they do not fit, and TorchScript raises the error then."""
        names = self._names
        if not kwargs and len(args) == len(names):
            return args
        given = dict(zip(names, args, strict=False)) | kwargs
        if len(given) != len(args) + len(kwargs) or not given.keys() <= set(names):
            return None
        if any(a.name not in given and not a.has_default_value() for a in self._arguments):
            return None
        return tuple(given.get(a.name, a.default_value) for a in self._arguments)


def _function(lowered: Lowered) -> Any:
    try:
        if lowered.assumptions is None:
            raise TorchScriptError(f"needs to know the inputs: {lowered.reason}")
        _check_devices(lowered.assumptions.tensors)
        fused = with_regions((lowered.fused or lowered.original).graph)
        original = without_module(lowered.original.graph)
    except TorchScriptError as error:
        message = f"fusewheel.jit.optimize: runtime='static' {error}"
        raise TorchScriptError(message) from error.__cause__
    return guarded_function(fused, original, lowered.arguments, lowered.assumptions)


def _check_devices(tensors: list[Tensor]) -> None:
    devices = sorted({tensor.device.type for tensor in tensors} - {"cpu"})
    if devices:
        raise TorchScriptError(f"runs on a CPU only, got an example on {devices[0]}")

"""PyTorch's static runtime: one graph without control flow, its memory planned ahead."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor

from .guarded import condition
from .result import Lowered
from .support import TorchScriptError

_CONTROL = (
    *("prim::If", "prim::Loop", "prim::fork", "prim::CallMethod", "prim::CallFunction"),
    *("prim::GetAttr", "prim::SetAttr", "prim::PythonOp"),
)


class StaticModel(torch.nn.Module):
    """Runs a graph in PyTorch's static runtime, for inference on a CPU.

    Inputs like the example run there, all others in the TorchScript interpreter. Calls take turns:
    the runtime has one set of buffers. It cannot be saved; `scripted` can.

    Args:
        lowered: a module and the assumptions about its inputs.

    Attributes:
        scripted: the same in the interpreter, a TorchScript module.

    Raises:
        TorchScriptError: the static runtime cannot run the graph; the message says why.
    """

    def __init__(self, lowered: Lowered) -> None:
        super().__init__()
        reason = _unsupported(lowered)
        if reason:
            raise TorchScriptError(f"fusewheel.jit.optimize: runtime='static' {reason}")
        assert lowered.assumptions is not None
        graph = lowered.fused or lowered.original
        self.scripted = lowered.module
        self._arguments = lowered.arguments
        self._holds = condition(lowered.arguments, lowered.assumptions)
        self._runtime = torch._C._jit_to_static_module(graph._c)
        self._lock = threading.Lock()
        self.eval()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's result for these inputs."""
        given = self._bound(args, kwargs)
        if given is None or not self._holds(*given):
            return self.scripted(*args, **kwargs)
        with self._lock:
            return self._runtime(*given)

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
        """All inputs in order; None where they do not fit, of which TorchScript tells best."""
        names = [argument.name for argument in self._arguments]
        if not kwargs and len(args) == len(names):
            return args
        given = dict(zip(names, args, strict=False)) | kwargs
        if len(given) != len(args) + len(kwargs) or not given.keys() <= set(names):
            return None
        if any(a.name not in given and not a.has_default_value() for a in self._arguments):
            return None
        return tuple(given.get(a.name, a.default_value) for a in self._arguments)


def _unsupported(lowered: Lowered) -> str:
    """Why the static runtime cannot run a graph; empty if it can."""
    if lowered.assumptions is None:
        return f"needs to know the inputs: {lowered.reason}"
    graph = (lowered.fused or lowered.original).graph
    for kind in _CONTROL:
        if graph.findAllNodes(kind):  # type: ignore[attr-defined]
            return f"runs straight graphs only, and this one has {kind}"
    tensors: list[Tensor] = lowered.assumptions.tensors
    devices = {tensor.device.type for tensor in tensors} - {"cpu"}
    if devices:
        return f"runs on a CPU only, got an example on {sorted(devices)[0]}"
    return ""

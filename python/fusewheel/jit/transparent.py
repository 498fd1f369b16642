"""`enable`: every TorchScript module of the process runs with fused operators."""

from __future__ import annotations

import logging
import threading
import warnings
import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .inference import is_observed
from .optimize import lowered
from .passes import TorchScript
from .support import require_torchscript

_log = logging.getLogger("fusewheel.jit")
# A module whose weights keep changing is not worth another rewrite after so many.
_ATTEMPTS = 3
_CALLED = torch.jit.ScriptModule
_ASSIGNED = torch.jit._script.RecursiveScriptModule

_lock = threading.RLock()
_enabled = False
_plain_call = torch.nn.Module.__call__
_plain_setattr = _ASSIGNED.__setattr__


@dataclass
class _Entry:
    """What became of one module.

    Attributes:
        module: what runs in its place; None where nothing was replaced.
        weights: the tensors that were frozen, with what shows that one has been changed.
        epoch: the number of assignments to modules seen when this was last compared.
        attempts: how often the module was rewritten.
        failed: whether that raised, as it does for arguments that do not fit.
    """

    module: TorchScript | None
    weights: list[tuple[Tensor, tuple[Any, ...]]]
    epoch: int
    attempts: int
    failed: bool


_entries: dict[int, _Entry] = {}
_epoch = 0


class Enabled:
    """The result of `enable`: as a context manager it restores what was before."""

    def __init__(self, before: bool) -> None:
        self._before = before

    def __enter__(self) -> Enabled:
        return self

    def __exit__(self, *error: object) -> None:
        if not self._before:
            disable()


def enable() -> Enabled:
    """From now on every scripted, traced or loaded module goes through `optimize` when called.

    The first call of a module runs it as it is and takes the time of the rewrite, with its
    arguments as the example. A module runs as it is where that fails or nothing is recognised,
    where it is in training mode, keeps state or has hooks, and where autograd records its weights:
    call it under ``torch.no_grad()``. Where a rewrite fails a warning says so. Changed weights are
    noticed. The module itself is left alone:
    it saves, loads and pickles as before. Threads may call it, and this function, at any time; a
    second call does nothing. Functions (``torch.jit.script`` of one) are not covered.

    Returns:
        a context manager that calls `disable` in the end, unless it was enabled before.

    Raises:
        TorchScriptError: this Python has no TorchScript.
    """
    global _enabled
    require_torchscript()
    with _lock:
        before, _enabled = _enabled, True
        if not before:
            setattr(_CALLED, "__call__", _call)  # noqa: B010
            setattr(_ASSIGNED, "__setattr__", _setattr)  # noqa: B010
    return Enabled(before)


def disable() -> None:
    """Undo `enable`: modules run as they are, and what was made for them is dropped."""
    global _enabled
    with _lock:
        if _enabled:
            delattr(_CALLED, "__call__")
            setattr(_ASSIGNED, "__setattr__", _plain_setattr)  # noqa: B010
        _enabled = False
        _entries.clear()


def _call(module: Any, *args: Any, **kwargs: Any) -> Any:
    if getattr(module, "training", False) or is_observed(module):
        return _plain_call(module, *args, **kwargs)
    entry = _entries.get(id(module))
    if entry is None or not _is_current(module, entry):
        # Arguments that do not fit raise here, and are no example.
        result = _plain_call(module, *args, **kwargs)
        _lower(module, args, kwargs)
        return result
    if entry.module is None or _records(entry):
        return _plain_call(module, *args, **kwargs)
    return entry.module(*args, **kwargs)


def _setattr(module: Any, name: str, value: Any) -> None:
    global _epoch
    _epoch += 1
    _plain_setattr(module, name, value)


def _records(entry: _Entry) -> bool:
    """Whether autograd would record the weights, which are constants in a frozen module."""
    return torch.is_grad_enabled() and any(weight.requires_grad for weight, _ in entry.weights)


def _is_current(module: Any, entry: _Entry) -> bool:
    if entry.attempts >= _ATTEMPTS and entry.module is None:
        return True
    if entry.failed or any(_mark(weight) != mark for weight, mark in entry.weights):
        return False
    if entry.epoch != _epoch:
        epoch, weights = _epoch, _weights(module)
        pairs = zip(weights, entry.weights, strict=False)
        if len(weights) != len(entry.weights) or any(a is not b[0] for a, b in pairs):
            return False
        entry.epoch = epoch
    return True


def _weights(module: Any) -> list[Tensor]:
    return [*module.parameters(), *module.buffers()]


def _mark(tensor: Tensor) -> tuple[Any, ...]:
    return tensor._version, tensor.data_ptr(), tensor.dtype


def _lower(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Entry:
    with _lock:
        before = _entries.get(id(module))
        if before is not None and _is_current(module, before):  # another thread was faster
            return before
        attempts = 0 if before is None else before.attempts
        epoch = _epoch
        try:
            weights = [(weight, _mark(weight)) for weight in _weights(module)]
            result = None if attempts >= _ATTEMPTS else _fused(module, args, kwargs)
            failed = False
        except Exception as error:
            _log.info("a module runs as it is", exc_info=True)
            if before is None:
                _warn(module, str(error))
            weights, result, failed = [], None, True
        entry = _Entry(result, weights, epoch, attempts + 1, failed)
        if _enabled:
            if before is None:
                weakref.finalize(module, _entries.pop, id(module), None)
            _entries[id(module)] = entry
        return entry


def _fused(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> TorchScript | None:
    arguments = module._c._get_method("forward").schema.arguments[1:]
    named = dict(zip((argument.name for argument in arguments), args, strict=False))
    result = lowered(module, {**named, **kwargs})
    if result.failed:
        _warn(module, result.reason)
    if result.fused is None:
        return None
    # State that calls change belongs to the module itself.
    stateful = any(
        result.original.graph.findAllNodes(kind)  # type: ignore[attr-defined]
        for kind in ("prim::GetAttr", "prim::SetAttr")
    )
    return None if stateful else result.module


def _warn(module: Any, reason: str) -> None:
    name = getattr(module, "original_name", type(module).__name__)
    warnings.warn(
        f"fusewheel.jit.enable: {name} runs as it is: {reason}", UserWarning, stacklevel=2
    )

"""`enable`: every TorchScript module of the process runs with fused operators."""

from __future__ import annotations

import logging
import threading
import warnings
import weakref
from dataclasses import dataclass
from typing import Any

import torch

from fusewheel._torch import jit
from fusewheel.jit.inference import is_observed
from fusewheel.jit.live import Live
from fusewheel.jit.live import live as lowered
from fusewheel.jit.support import require_torchscript, users_stacklevel

_log = logging.getLogger("fusewheel.jit")
# After so many rewrites, a module whose attributes keep changing runs as it is.
_ATTEMPTS = 3
_CALLED = torch.jit.ScriptModule

_lock = threading.RLock()
_enabled = False
_plain_call = torch.nn.Module.__call__


@dataclass
class _Entry:
    """The state of one module.

    Attributes:
        live: what runs instead of it; None if nothing was replaced.
        attempts: how often the module was rewritten.
        failed: whether a rewrite raised an error, as for arguments that do not fit.
    """

    live: Live | None
    attempts: int
    failed: bool


_entries: dict[int, _Entry] = {}


class Enabled:
    """The result of `enable`; as a context manager it restores the previous state at the end."""

    def __init__(self, before: bool) -> None:
        self._before = before

    def __enter__(self) -> Enabled:
        return self

    def __exit__(self, *error: object) -> None:
        if not self._before:
            disable()


def enable() -> Enabled:
    """Let every scripted, traced or loaded module use fused operators from now on.

    At its first call a module runs unchanged and is then rewritten, with the arguments of that call
    as the example. It runs unchanged, without fused operators, if nothing is recognised, if the
    rewrite fails (with a warning), in training mode, with hooks, if calls change its attributes,
    and if autograd would record its weights: call it under ``torch.no_grad()``.

    The fused operators read the attributes of the module at each call. So a call that begins after
    a change sees the change, also one by ``weight.data.copy_`` or in another thread. The module
    itself is not changed: it saves, loads and pickles as before. Several threads may call the
    module and this function. A second call of this function does nothing. Functions
    (``torch.jit.script`` of a function) are not covered.

    Returns:
        a context manager that calls `disable` at its end, unless `enable` was called before.

    Raises:
        TorchScriptError: this Python has no TorchScript.
    """
    global _enabled
    require_torchscript()
    with _lock:
        before, _enabled = _enabled, True
        if not before:
            setattr(_CALLED, "__call__", _call)  # noqa: B010
    return Enabled(before)


def disable() -> None:
    """Undo `enable`: all modules run unchanged again, and their fused graphs are dropped."""
    global _enabled
    with _lock:
        if _enabled:
            delattr(_CALLED, "__call__")
        _enabled = False
        _entries.clear()


def _call(module: Any, *args: Any, **kwargs: Any) -> Any:
    if getattr(module, "training", False) or is_observed(module):
        return _plain_call(module, *args, **kwargs)
    entry = _entries.get(id(module))
    if entry is None or not _is_current(entry):
        # Arguments that do not fit raise an error here, and do not become the example.
        result = _plain_call(module, *args, **kwargs)
        _lower(module, args, kwargs)
        return result
    live = entry.live
    if live is None or (torch.is_grad_enabled() and live.requires_grad()):
        return _plain_call(module, *args, **kwargs)
    return live.module(*args, **kwargs)


def _is_current(entry: _Entry) -> bool:
    if entry.live is not None:
        return entry.live.holds()
    return not entry.failed or entry.attempts >= _ATTEMPTS


def _lower(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    with _lock:
        before = _entries.get(id(module))
        if before is not None and _is_current(before):  # another thread was faster
            return
        attempts = 0 if before is None else before.attempts
        live, failed = None, False
        if attempts < _ATTEMPTS:
            try:
                live = lowered(module, _named(module, args, kwargs))
            except Exception as error:
                _log.info("a module runs as it is", exc_info=True)
                failed = True
                if before is None:
                    _warn(module, str(error))
        if _enabled:
            if before is None:
                weakref.finalize(module, _entries.pop, id(module), None)
            _entries[id(module)] = _Entry(live, attempts + 1, failed)


def _named(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    arguments = jit.forward_of(module).schema.arguments[1:]
    named = dict(zip((argument.name for argument in arguments), args, strict=False))
    return {**named, **kwargs}


def _warn(module: Any, reason: str) -> None:
    name = getattr(module, "original_name", type(module).__name__)
    warnings.warn(
        f"fusewheel.jit.enable: {name} runs as it is: {reason}",
        UserWarning,
        stacklevel=users_stacklevel(),
    )

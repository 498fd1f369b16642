"""The dispatcher's table of kernels, its keys, and the modes that are active."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import checkpoint

from fusewheel._torch.find import find

_has_kernel = find(
    "torch._C._dispatch_has_kernel_for_dispatch_key", "see which devices have a kernel"
)
_key_for_device = find(
    "torch._C._dispatch_key_for_device",
    "see which devices have a kernel",
    lambda device: "PrivateUse1" if device not in ("cpu", "cuda") else device.upper(),
)
_dump = find("torch._C._dispatch_dump", "show where kernels were registered")
_key_set = find("torch._C.DispatchKeySet", "call an operator without autocast")
_keys = find("torch._C.DispatchKey", "call an operator without autocast", None)
_exclude = find("torch._C._ExcludeDispatchKeyGuard", "call an operator without autocast", None)
_function_modes = find(
    "torch._C._len_torch_function_stack", "see whether a mode watches calls", lambda: 1
)
_dispatch_modes = find(
    "torch._C._len_torch_dispatch_stack", "see whether a mode watches calls", lambda: 1
)
_transform = find(
    "torch._C._functorch.peek_interpreter_stack",
    "see whether a transform of torch.func is active",
    lambda: True,
)
_tracing_state = find("torch._C._get_tracing_state", "see whether a tracer looks on", lambda: True)
_any_autocast = find(
    "torch._C._is_any_autocast_enabled", "see whether autocast casts arguments", lambda: True
)
_plain = frozenset((torch.Tensor, torch.nn.Parameter, float, int, bool, type(None))).issuperset
# Whether a `__torch_function__`, of a mode or of one of its arguments, comes before an operator. It
# is asked in each call, so it has no Python function around it; the same holds for `transforming`.
has_torch_function: Any = find(
    "torch._C._has_torch_function_variadic",
    "see whether __torch_function__ has a say",
    lambda *arguments: bool(_function_modes()) or not _plain(map(type, arguments)),
)
# Whether a transform of `torch.func` is active.
transforming: Any = find(
    "torch._C._are_functorch_transforms_active",
    "see whether a transform of torch.func is active",
    lambda: _transform() is not None,
)
_mode_stack = find(
    "torch.utils._python_dispatch._get_current_dispatch_mode_stack",
    "refuse a checkpoint that would lose a write",
    lambda: [],
)
_modes_off = find(
    "torch.utils._python_dispatch._disable_current_modes",
    "compute constants while a graph is compiled",
    contextlib.nullcontext,
)
# Whether a tensor is one of a subclass that holds others.
is_wrapper: Any = find(
    "torch.utils._python_dispatch.is_traceable_wrapper_subclass",
    "leave tensor subclasses alone",
    lambda value: isinstance(value, torch.Tensor) and hasattr(value, "__tensor_flatten__"),
)
_saving_mode: Any = find(
    "torch.utils.checkpoint._CachedTorchDispatchMode",
    "refuse a checkpoint that would lose a write",
    (),
)

if TYPE_CHECKING:
    from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
else:
    # `object` where this torch has none; nothing else can stand in for what the dispatcher calls.
    TorchDispatchMode = find(
        "torch.utils._python_dispatch.TorchDispatchMode", "watch the calls of an operator", object
    )


def has_kernel(operator: str, key: str) -> bool:
    """Whether an operator (``"fusewheel::mul"``) has a kernel for a dispatch key."""
    return bool(_has_kernel(operator, key))


def key_of_device(device: str) -> str:
    """The dispatch key of a device type."""
    return str(_key_for_device(device))


def registrations(operator: str) -> str:
    """The dispatcher's own listing of an operator's kernels."""
    return str(_dump(operator))


def autocast_off(device: str) -> Callable[[], contextlib.AbstractContextManager[Any]]:
    """Makes blocks without autocast's kernels for a device, ``"CPU"`` or ``"CUDA"``."""
    if _exclude is None or _keys is None:
        return partial(torch.autocast, device.lower(), enabled=False)
    return partial(_exclude, _key_set(getattr(_keys, f"Autocast{device}")))


def is_watched() -> bool:
    """Whether a mode of `__torch_function__` or `__torch_dispatch__` is active."""
    return bool(_function_modes() or _dispatch_modes())


def is_direct() -> bool:
    """Whether a call of an operator reaches its `Autograd` kernel before anything else.

    It does unless a mode, a transform of `torch.func`, autocast or `torch.jit.trace` is active.
    """
    return not (
        _function_modes()
        or _dispatch_modes()
        or _any_autocast()
        or _transform() is not None
        or _tracing_state() is not None
    )


def is_seen() -> bool:
    """Whether a mode of `__torch_dispatch__`, autocast or `torch.jit.trace` is active."""
    return bool(_dispatch_modes() or _any_autocast() or _tracing_state() is not None)


def has_dispatch_modes() -> bool:
    """Whether a mode of `__torch_dispatch__` is active."""
    return bool(_dispatch_modes())


def modes_off() -> contextlib.AbstractContextManager[Any]:
    """A block in which no mode of `__torch_dispatch__` is active."""
    block: contextlib.AbstractContextManager[Any] = _modes_off()
    return block


def kernels_in_python() -> contextlib.AbstractContextManager[Any]:
    """A block in which operators of torch run by their Python code, which takes symbolic sizes."""
    enabled = find(
        "torch._dispatch.python.enable_python_dispatcher",
        "compute with symbolic sizes",
        contextlib.nullcontext,
    )
    block: contextlib.AbstractContextManager[Any] = enabled()
    return block


def saved_by_checkpoint(operator: Any) -> bool:
    """Whether a selective checkpoint being recomputed has saved what an operator returned."""
    for mode in _mode_stack():
        if isinstance(mode, _saving_mode):
            entries = mode.storage.get(operator, ())
            values = entries.values() if isinstance(entries, dict) else entries
            recompute = getattr(checkpoint, "_RECOMPUTE", None)
            if any(value is not recompute for value in values):
                return True
    return False

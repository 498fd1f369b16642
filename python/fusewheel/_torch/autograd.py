"""Autograd: running below it, forward mode, and the hooks on saved tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.autograd import forward_ad

from fusewheel._torch.dispatcher import transforming
from fusewheel._torch.find import Missing, find

_SHORT = "call small operators by the shortest way"

# A context manager in which operators skip autograd's kernels.
below_autograd: Any = find(
    "torch._C._AutoDispatchBelowAutograd", "call a kernel from within its own derivative"
)
any_requires_grad: Any = find(
    "torch._C._any_requires_grad",
    "see whether a call needs a gradient",
    lambda *arguments: any(isinstance(a, torch.Tensor) and a.requires_grad for a in arguments),
)
_below_writes = find(
    "torch._C._AutoDispatchBelowADInplaceOrView", "count an operator's write to its argument"
)
_keys_after_writes = find(
    "torch._C._after_ADInplaceOrView_keyset", "count an operator's write to its argument"
)
_set_tracing = find(
    "torch._C._autograd._saved_tensors_hooks_set_tracing",
    "compute example values beside the user's hooks",
    None,
)
_alive = find("torch._C._functorch.unwrap_if_dead", _SHORT, None)
_excluded = find("torch._C._dispatch_tls_is_dispatch_key_excluded", _SHORT, None)
_keys = find("torch._C.DispatchKey", _SHORT, None)
_keeps_graph = find(
    "torch._C._autograd._get_current_graph_task_keep_graph",
    "reuse the memory of a gradient",
    lambda: True,
)


class _Below:
    """Operators skip autograd's kernels for as long as this object lives."""

    def __init__(self) -> None:
        self._block = below_autograd()
        self._block.__enter__()

    def __del__(self) -> None:
        self._block.__exit__(None, None, None)


def _skips_at_once() -> bool:
    """Whether a `below_autograd` works from when it is made, as in torch 2.13, or is entered."""
    if None in (_excluded, _keys) or isinstance(below_autograd, Missing):
        return False
    key = _keys.AutogradFunctionality
    block = below_autograd()
    found = _excluded(key)
    del block
    return bool(found and not _excluded(key))


# Operators skip autograd's kernels from when this is called until what it returns is deleted. A
# small operator takes as long as entering and leaving a context manager. Use it like this, so that
# no traceback keeps what it returned:
#
#     below = skip_autograd()
#     try:
#         return call(...)
#     finally:
#         del below
skip_autograd: Any = below_autograd if _skips_at_once() else _Below


def short_apply(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """`function.apply` without its Python, for a function that has no `setup_context`."""
    apply = function.apply
    short = getattr(super(torch.autograd.Function, function), "apply", None)
    if short is None or _alive is None:
        return apply
    tensor, alive = torch.Tensor, _alive

    def call(*arguments: Any) -> Any:
        if transforming():
            return apply(*arguments)
        # As `apply` does: a tensor of a transform that has ended stands for what is in it. It is of
        # no other type.
        return short(*[alive(a) if type(a) is tensor else a for a in arguments])

    return call


# The forward-mode level that is open is `forward_mode.get(LEVEL, 0)`; from 0 on, tensors may carry
# tangents.
forward_mode: dict[str, Any] = vars(forward_ad)
LEVEL = "_current_level"


def in_forward_mode() -> bool:
    """Whether a forward-mode level is open, so that tensors may carry tangents."""
    return bool(forward_mode.get(LEVEL, 0) >= 0)


def redispatch_below_writes(overload: Any, keyset: Any, arguments: tuple[Any, ...]) -> Any:
    """Call what comes after the `ADInplaceOrView` kernels of an operator."""
    with _below_writes():
        return overload.redispatch(keyset & _keys_after_writes, *arguments)


@contextlib.contextmanager
def saved_tensor_hooks_off() -> Iterator[None]:
    """A block in which the user's hooks on saved tensors are not called."""
    if _set_tracing is None:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
            yield
        return
    before = _set_tracing(True)
    try:
        yield
    finally:
        _set_tracing(before)


def graph_is_kept() -> bool:
    """Whether the backward pass that runs now may run again."""
    return bool(_keeps_graph())

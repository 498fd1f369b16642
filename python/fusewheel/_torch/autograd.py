"""Autograd: running below it, forward mode, and the hooks on saved tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.autograd import forward_ad

from fusewheel._torch.find import find

# A context manager in which operators skip autograd's kernels. It is used in each call, so it has
# no Python function around it.
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
_keeps_graph = find(
    "torch._C._autograd._get_current_graph_task_keep_graph",
    "reuse the memory of a gradient",
    lambda: True,
)


def in_forward_mode() -> bool:
    """Whether a forward-mode level is open, so that tensors may carry tangents."""
    return getattr(forward_ad, "_current_level", 0) >= 0


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

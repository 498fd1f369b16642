"""Registers the Python side of an operator with the dispatcher.

The kernel libraries register the kernels for devices (CPU, CUDA). This module registers the rest,
in the same way for every operator:

* `Autograd`: an `autograd.Function` around the kernel. If an input has a forward-mode tangent, the
  reference runs instead, so that the tangent is not lost (`autograd.py`).
* `FuncTorchDynamicLayerFrontMode`: under `torch.func` the reference runs, which works with every
  transform. Under `vmap` the operator runs once for all samples where that is possible (`vmap.py`).
* `CompositeExplicitAutograd`: on a device without a kernel library the reference runs.
* `ADInplaceOrView`: an operator that writes to an argument increments its version. Otherwise
  gradients that need the old value would silently be wrong.
* `AutocastCPU`, `AutocastCUDA`: tensors of several dtypes are cast to one.
* Sparse and quantised tensors are refused with a message that names the argument.

Operators with a formula for their floating-point operations are registered with PyTorch's flop
counter.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fusewheel._torch.autograd import redispatch_below_writes
from fusewheel._torch.dispatcher import has_dispatch_modes, saved_by_checkpoint
from fusewheel._torch.overloads import OpOverload
from fusewheel.dispatch.autocast import autocast_kernel
from fusewheel.dispatch.autograd import autograd_kernel, recorder
from fusewheel.dispatch.operator import Operator
from fusewheel.dispatch.promise import check_layout, checked_fake, promise
from fusewheel.dispatch.short import remember
from fusewheel.dispatch.vmap import transform_kernel

_library = torch.library.Library("fusewheel", "IMPL")

_REFUSED_KEYS = (
    "SparseCPU",
    "SparseCUDA",
    "SparseCsrCPU",
    "SparseCsrCUDA",
    "QuantizedCPU",
    "MkldnnCPU",
)


def register(operator: Operator) -> None:
    """Registers everything about `operator` except its kernels."""
    name = operator.name
    torch.library.register_fake(
        f"fusewheel::{name}", _completed(operator, checked_fake), lib=_library
    )
    record = recorder(operator)
    remember(name, record)
    kernels: dict[str, Callable[[Operator], Callable[..., Any]]] = {
        "Autograd": partial(autograd_kernel, record=record),
        "FuncTorchDynamicLayerFrontMode": transform_kernel,
        "CompositeExplicitAutograd": _fallback,
        **dict.fromkeys(_REFUSED_KEYS, _refusal),
    }
    for key, make_kernel in kernels.items():
        kernel = _completed(operator, make_kernel)
        _library.impl(name, kernel, key)
    if operator.function is not None and operator.autocast is not None:
        for device in ("CPU", "CUDA"):
            kernel = _completed(operator, partial(autocast_kernel, device=device))
            _library.impl(name, kernel, f"Autocast{device}")
    if operator.flops is not None:
        _count_flops(operator, operator.flops)
    if operator.mutates is not None:
        _library.impl(name, _version_bump(operator), "ADInplaceOrView", with_keyset=True)


def _completed(
    operator: Operator, make_kernel: Callable[[Operator], Callable[..., Any]]
) -> Callable[..., Any]:
    """A kernel that gets all arguments: the dispatcher leaves out those that have their default."""
    kernel = make_kernel(operator)
    arguments = operator.overload._schema.arguments
    defaults = tuple(a.default_value for a in arguments if a.has_default_value())
    if not defaults:
        return kernel
    required = len(arguments) - len(defaults)

    def completed(*given: Any) -> Any:
        return kernel(*given, *defaults[len(given) - required :])

    return completed


def _count_flops(operator: Operator, formula: Callable[..., int]) -> None:
    from torch.utils.flop_counter import register_flop_formula

    completed = _completed(operator, lambda _: formula)
    packet = operator.overload.overloadpacket
    register_flop_formula(packet, get_raw=True)(lambda *given, out_val: completed(*given))


def _fallback(operator: Operator) -> Callable[..., Any]:
    promised_by = promise(operator)

    def kernel(*arguments: Any) -> Any:
        # Compilers rely on the strides that the fake returns.
        promised = promised_by(*arguments)
        result = operator.reference(*arguments)
        if result is None:
            return None
        if isinstance(result, Tensor):
            return _in_layout(result, promised)
        return tuple(_in_layout(r, p) for r, p in zip(result, promised, strict=True))

    return kernel


def _in_layout(result: Tensor, promised: Tensor) -> Tensor:
    if result.stride() == promised.stride():
        return result
    return result.new_empty_strided(promised.shape, promised.stride()).copy_(result)


def _version_bump(operator: Operator) -> Callable[..., Any]:
    overload = operator.overload
    index = operator.mutates
    assert index is not None

    def kernel(keyset: Any, *arguments: Any) -> Any:
        if has_dispatch_modes():
            _refuse_saved(overload)
        result = redispatch_below_writes(overload, keyset, arguments)
        torch.autograd.graph.increment_version(arguments[index])
        return result

    return kernel


def _refuse_saved(overload: OpOverload) -> None:
    """Raises an error if a selective checkpoint would save an operator that writes to an argument.

    Such an operator returns nothing. A checkpoint that saved this would not run it again, so the
    write would be missing and gradients would silently be wrong.
    """
    if saved_by_checkpoint(overload):
        raise RuntimeError(
            f"{overload.name()}: the policy of a selective checkpoint must not save an "
            "operator that writes to its argument; let the policy recompute it"
        )


def _refusal(operator: Operator) -> Callable[..., Any]:
    names = [argument.name for argument in operator.overload._schema.arguments]

    def kernel(*arguments: Any) -> Any:
        for name, argument in zip(names, arguments, strict=True):
            if isinstance(argument, Tensor):
                check_layout(operator.name, (name, argument))
        raise RuntimeError(f"{operator.name}: every tensor must be dense and on one device")

    return kernel

"""Hands an operator's Python side to the dispatcher.

The kernel libraries fill the backend keys (CPU, CUDA). The rest is here, the same for every
operator:

* `Autograd`: an `autograd.Function` around the kernel. Where an input carries a forward-mode
  tangent the reference runs instead, so that the tangent is not lost.
* `FuncTorchDynamicLayerFrontMode`: under `torch.func` the reference runs, which every transform
  understands; under `vmap` the operator once, where it can take all samples (`_batching.py`).
* `CompositeExplicitAutograd`: a device without a kernel library runs the reference.
* `ADInplaceOrView`: an operator that writes an argument bumps its version, or gradients that saved
  the old value would silently be wrong.
* `AutocastCPU`, `AutocastCUDA`: tensors of several dtypes are cast to one.
* Sparse and quantised layouts are refused by name.

PyTorch's flop counter learns the formulas of those that have one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils import checkpoint
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from fusewheel._autocast import autocast_kernel
from fusewheel._batching import transform_kernel
from fusewheel._operator import Arguments, Operator

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
    """Registers everything about `operator` that is not a kernel."""
    name = operator.name
    torch.library.register_fake(f"fusewheel::{name}", _completed(operator, _fake), lib=_library)
    kernels: dict[str, Callable[[Operator], Callable[..., Any]]] = {
        "Autograd": _autograd_kernel,
        "FuncTorchDynamicLayerFrontMode": transform_kernel,
        "CompositeExplicitAutograd": _fallback,
        **dict.fromkeys(_REFUSED_KEYS, _refusal),
    }
    for key, make_kernel in kernels.items():
        _library.impl(name, _completed(operator, make_kernel), key)
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
    """A kernel that gets every argument: the dispatcher leaves out those with their default."""
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


def _fake(operator: Operator) -> Callable[..., Any]:
    names = [argument.name for argument in operator.overload._schema.arguments]

    def fake(*arguments: Any) -> Any:
        # A mixture of a device and `meta` comes here, not to a kernel.
        tensors = [(n, a) for n, a in zip(names, arguments, strict=True) if isinstance(a, Tensor)]
        (first_name, first), *others = tensors
        for other_name, other in others:
            if other.device != first.device:
                raise RuntimeError(
                    f"{operator.name}: {other_name} must be on the device of {first_name}, "
                    f"{first.device}, got {other.device}"
                )
        return operator.fake(*arguments)

    return fake


def _fallback(operator: Operator) -> Callable[..., Any]:
    schema = operator.overload._schema.arguments
    tensors = [(i, a.name) for i, a in enumerate(schema) if str(a.type) == "Tensor"]

    def kernel(*arguments: Any) -> Any:
        for i, name in tensors:
            if arguments[i] is None:
                raise RuntimeError(f"{operator.name}: {name} must be a tensor, got None")
        result = operator.reference(*arguments)
        if result is None:
            return None
        # Compilers rely on the strides that the fake promises.
        promised = operator.fake(*arguments)
        if isinstance(result, Tensor):
            return result if result.stride() == promised.stride() else promised.copy_(result)
        return tuple(
            r if r.stride() == p.stride() else p.copy_(r)
            for r, p in zip(result, promised, strict=True)
        )

    return kernel


def _autograd_kernel(operator: Operator) -> Callable[..., Any]:
    reference = operator.reference
    # What `overload(...)` calls in its turn: a Python call less.
    call = operator.overload._op
    read = range(len(operator.overload._schema.arguments)) if operator.in_place else ()
    needs_old_value = [i for i in read if i != operator.mutates]
    apply = _function(operator).apply
    below_autograd = torch._C._AutoDispatchBelowAutograd
    grad_enabled = torch.is_grad_enabled

    def kernel(*arguments: Any) -> Any:
        if forward_ad._current_level >= 0 and _has_tangent(arguments):
            return reference(*arguments)
        if grad_enabled():
            for argument in arguments:
                if isinstance(argument, Tensor) and argument.requires_grad:
                    if any(_requires_grad(arguments[i]) for i in needs_old_value):
                        return reference(*arguments)
                    result = apply(*arguments)
                    return None if operator.mutates is not None else result
        with below_autograd():
            return call(*arguments)

    return kernel


def _requires_grad(argument: Any) -> bool:
    return isinstance(argument, Tensor) and argument.requires_grad


def _has_tangent(arguments: Arguments) -> bool:
    return any(
        isinstance(a, Tensor) and forward_ad.unpack_dual(a).tangent is not None for a in arguments
    )


def _function(operator: Operator) -> type[torch.autograd.Function]:
    call = operator.overload._op
    differentiate = operator.backward or _reference_backward(operator)
    mutates = operator.mutates

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *arguments: Any) -> Any:
            with torch._C._AutoDispatchBelowAutograd():
                result = call(*arguments)
            tensors = [a if isinstance(a, Tensor) else None for a in arguments]
            saved = [result[i] for i in operator.auxiliary]
            if mutates is not None:
                # Its old value is gone, and no gradient that `backward` gives is a function of it.
                tensors[mutates] = None
                result = arguments[mutates]
                ctx.mark_dirty(result)
            ctx.set_materialize_grads(operator.materialize_grads)
            ctx.save_for_backward(*tensors, *saved)
            ctx.constants = [None if isinstance(a, Tensor) else a for a in arguments]
            return result

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            count = len(ctx.constants)
            unpacked = ctx.saved_tensors  # once: activation checkpointing allows no second time
            tensors, saved = unpacked[:count], unpacked[count:]
            arguments = tuple(
                c if t is None else t for t, c in zip(tensors, ctx.constants, strict=True)
            )
            return tuple(differentiate(ctx.needs_input_grad, grads, arguments, saved))

    Function.__name__ = Function.__qualname__ = f"fusewheel_{operator.name}"
    _leave_to_python(Function.backward)
    return Function


def _leave_to_python(function: Callable[..., Any]) -> None:
    """Keep Dynamo from compiling a function that a compiled one calls through the engine.

    It would make a graph of the few operators in each, with guards for each call.
    """
    frames = torch._C._dynamo.eval_frame
    if hasattr(frames, "set_code_exec_strategy"):
        skip = frames._FrameAction.SKIP
        strategy = frames._FrameExecStrategy(skip, skip)
        frames.set_code_exec_strategy(function.__code__, strategy)


def _reference_backward(operator: Operator) -> Callable[..., Any]:
    def backward(
        needs: Sequence[bool],
        grads: Sequence[Tensor],
        arguments: Arguments,
        saved: Sequence[Tensor],
    ) -> list[Tensor | None]:
        return reference_gradients(operator.reference, needs, grads, arguments)

    return backward


def reference_gradients(
    reference: Callable[..., Any],
    needs: Sequence[bool],
    grads: Sequence[Tensor | None],
    arguments: Arguments,
) -> list[Tensor | None]:
    """Gradients of `reference` at `arguments`, one per argument, themselves differentiable."""
    if any(hasattr(argument, "device_mesh") for argument in arguments):
        # Few of PyTorch's operators run on pieces, and what is computed here is rare.
        from fusewheel.distributed._whole import on_whole_tensors

        return on_whole_tensors(
            lambda grads, arguments: reference_gradients(reference, needs, grads, arguments),
            tuple(grads),
            arguments,
        )
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        # Fresh views stop the inner differentiation at the arguments and stay part of the outer.
        inputs = [
            (a.view_as(a) if create_graph else a.detach().requires_grad_()) if needed else a
            for a, needed in zip(arguments, needs, strict=True)
        ]
        result = reference(*inputs)
        results = result if isinstance(result, tuple) else (result,)
        pairs = [
            (r, g) for r, g in zip(results, grads, strict=True) if r.requires_grad and g is not None
        ]
        wanted = [a for a, needed in zip(inputs, needs, strict=True) if needed]
        found = iter(
            torch.autograd.grad(
                [r for r, _ in pairs],
                wanted,
                [g for _, g in pairs],
                create_graph=create_graph,
                allow_unused=True,
            )
        )
    return [next(found) if needed else None for needed in needs]


def _version_bump(operator: Operator) -> Callable[..., Any]:
    overload = operator.overload
    index = operator.mutates
    assert index is not None

    def kernel(keyset: torch._C.DispatchKeySet, *arguments: Any) -> Any:
        if torch._C._len_torch_dispatch_stack():
            _refuse_saved(overload)
        with torch._C._AutoDispatchBelowADInplaceOrView():
            result = overload.redispatch(
                keyset & torch._C._after_ADInplaceOrView_keyset, *arguments
            )
        torch.autograd.graph.increment_version(arguments[index])
        return result

    return kernel


def _refuse_saved(overload: torch._ops.OpOverload) -> None:
    """A checkpoint that has saved what the operator returned, nothing, would not run it again: the
    write would be missing, and gradients silently wrong.
    """
    for mode in _get_current_dispatch_mode_stack():
        if isinstance(mode, checkpoint._CachedTorchDispatchMode):
            entries = mode.storage.get(overload, ())
            values = entries.values() if isinstance(entries, dict) else entries
            if any(value is not getattr(checkpoint, "_RECOMPUTE", None) for value in values):
                raise RuntimeError(
                    f"{overload.name()}: the policy of a selective checkpoint must not save an "
                    "operator that writes its argument; let it be recomputed"
                )


def _refusal(operator: Operator) -> Callable[..., Any]:
    names = [argument.name for argument in operator.overload._schema.arguments]

    def kernel(*arguments: Any) -> Any:
        for name, argument in zip(names, arguments, strict=True):
            if isinstance(argument, Tensor) and (
                argument.layout != torch.strided or argument.is_quantized
            ):
                kind = "quantized" if argument.is_quantized else str(argument.layout)
                raise RuntimeError(
                    f"{operator.name}: {name} must be a dense tensor (layout torch.strided), "
                    f"got {kind}"
                )
        raise RuntimeError(f"{operator.name}: every tensor must be dense and on one device")

    return kernel

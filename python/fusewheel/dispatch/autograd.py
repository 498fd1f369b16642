"""Gradients of operators: what is recorded in the forward pass, and what backward makes of it.

An `autograd.Function` runs the kernel and saves the tensors that the operator declares
(`Operator.saves`). Its backward hands them to the formula of the operator, or differentiates the
reference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from fusewheel._torch.autograd import (
    any_requires_grad,
    in_forward_mode,
    short_apply,
    skip_autograd,
)
from fusewheel._torch.dynamo import leave_to_python
from fusewheel._torch.overloads import shortest_call
from fusewheel.dispatch.operator import Arguments, Operator, Unsaved
from fusewheel.dispatch.promise import promise

_TENSOR = ("Tensor", "Optional[Tensor]")


def recorder(operator: Operator) -> Callable[..., Any]:
    """Calls the operator, and records the call so that gradients can be computed."""
    apply = short_apply(_function(operator))
    written = operator.mutates
    if written is None:
        return apply
    reference = _checked_reference(operator)
    read = range(len(operator.overload._schema.arguments)) if operator.in_place else ()
    needs_old_value = [i for i in read if i != written]

    def record(*arguments: Any) -> None:
        if any(_requires_grad(arguments[i]) for i in needs_old_value):
            reference(*arguments)
        else:
            apply(*arguments)

    return record


def autograd_kernel(operator: Operator, record: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel for `Autograd`: records the call, or runs the reference if there are tangents."""
    reference = _checked_reference(operator)
    call = shortest_call(operator.overload)
    grad_enabled = torch.is_grad_enabled

    def kernel(*arguments: Any) -> Any:
        if in_forward_mode() and _has_tangent(arguments):
            return reference(*arguments)
        if grad_enabled() and any_requires_grad(*arguments):
            return record(*arguments)
        below = skip_autograd()
        try:
            return call(*arguments)
        finally:
            del below

    return kernel


def _checked_reference(operator: Operator) -> Callable[..., Any]:
    promised_by = promise(operator)

    def reference(*arguments: Any) -> Any:
        promised_by(*arguments)
        return operator.reference(*arguments)

    return reference


def _requires_grad(argument: Any) -> bool:
    return isinstance(argument, Tensor) and argument.requires_grad


def _has_tangent(arguments: Arguments) -> bool:
    return any(
        isinstance(a, Tensor) and forward_ad.unpack_dual(a).tangent is not None for a in arguments
    )


def _function(operator: Operator) -> type[torch.autograd.Function]:
    call = shortest_call(operator.overload)
    differentiate = operator.backward or _reference_backward(operator)
    mutates = operator.mutates
    if mutates is not None:
        # AOTAutograd records no write that is made while gradients are off, as they are in
        # `forward`: it would lose the gradient of an input of a compiled graph.
        call = torch.enable_grad()(call)
    saved_for = _saved(operator)

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *arguments: Any) -> Any:
            below = skip_autograd()
            try:
                result = call(*arguments)
            finally:
                del below
            kept, unsaved, results = saved_for(ctx.needs_input_grad)
            saved = [arguments[i] for i in kept]
            for i in results:
                saved.append(result[i])
            rest = list(arguments)
            for i in kept:
                rest[i] = None
            for i in unsaved:
                if rest[i] is not None:
                    rest[i] = Unsaved(rest[i].shape, rest[i].dtype)
            if mutates is not None:
                result = arguments[mutates]
                ctx.mark_dirty(result)
            if not operator.materialize_grads:
                ctx.set_materialize_grads(False)
            ctx.save_for_backward(*saved)
            ctx.kept = kept
            ctx.rest = rest
            return result

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            saved = ctx.saved_tensors  # once: activation checkpointing raises the second time
            count = len(ctx.kept)
            arguments = list(ctx.rest)
            for i, tensor in zip(ctx.kept, saved, strict=False):  # results stand behind them
                arguments[i] = tensor
            return tuple(
                differentiate(ctx.needs_input_grad, grads, tuple(arguments), saved[count:])
            )

    Function.__name__ = Function.__qualname__ = f"fusewheel_{operator.name}"
    leave_to_python(Function.backward)
    return Function


def _saved(operator: Operator) -> Callable[[tuple[bool, ...]], tuple[list[int], ...]]:
    """Which arguments are saved, which other arguments are tensors, and which results are saved, by
    which arguments need a gradient.
    """
    schema = operator.overload._schema
    tensors = [i for i, a in enumerate(schema.arguments) if str(a.type) in _TENSOR]
    arguments = {argument.name: i for i, argument in enumerate(schema.arguments)}
    results = {result.name: i for i, result in enumerate(schema.returns)}

    @cache
    def saved(needs: tuple[bool, ...]) -> tuple[list[int], ...]:
        names = operator.saved(needs)
        kept = [arguments[name] for name in names if arguments.get(name) in tensors]
        unsaved = [i for i in tensors if i not in kept]
        return kept, unsaved, [results[name] for name in names if name not in arguments]

    return saved


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
    """The gradients of `reference` at `arguments`, one for each argument; differentiable again.

    No gradient may depend on the numbers of an `Unsaved` argument.
    """
    if any(hasattr(argument, "device_mesh") for argument in (*grads, *arguments)):
        # Few of PyTorch's operators have sharding rules, and these gradients are rare.
        from fusewheel.dispatch.whole import on_whole_tensors

        return on_whole_tensors(
            lambda grads, arguments: reference_gradients(reference, needs, grads, arguments),
            tuple(grads),
            arguments,
        )
    beside = next((grad for grad in grads if grad is not None), None)
    if beside is None:
        return [None] * len(needs)
    create_graph = torch.is_grad_enabled()

    def variable(argument: Any) -> Any:
        if isinstance(argument, Unsaved):
            return argument.blank(beside).requires_grad_()
        # With views, the inner differentiation ends at the arguments, and the outer one goes on.
        return argument.view_as(argument) if create_graph else argument.detach().requires_grad_()

    def constant(argument: Any) -> Any:
        return argument.blank(beside) if isinstance(argument, Unsaved) else argument

    with torch.enable_grad():
        inputs = [
            variable(argument) if needed else constant(argument)
            for argument, needed in zip(arguments, needs, strict=True)
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

"""What autograd keeps between forward and backward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from doctor.defects.declare import Twin, doubled, library, planted
from fusewheel.doctor import traps
from torch import Tensor


@planted("saved hooks", trap=traps.CONTEXT_STATE)
def finds_by_address(twin: Twin) -> Any:
    """Keeps what it computed under the address of a saved tensor, which a hook replaces."""
    kept: dict[int, Tensor] = {}

    def save(ctx: Any, inputs: Sequence[Any], output: Any) -> None:
        (x,) = inputs
        kept[x.data_ptr()] = 2 * x.detach()
        ctx.save_for_backward(x)

    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad * (kept[x.data_ptr()] if twin.faulty else 2 * x)

    return twin.operator(lambda x: x * x, save=save, backward=backward)


@planted("saved hooks", trap=traps.CONTEXT_STATE)
def doubles_by_address(twin: Twin) -> Any:
    """The same where no entry is no error."""
    kept: dict[int, float] = {}

    def save(ctx: Any, inputs: Sequence[Any], output: Any) -> None:
        (x,) = inputs
        kept[x.data_ptr()] = 2.0
        ctx.save_for_backward(x)

    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad * x * (kept.get(x.data_ptr(), 1.0) if twin.faulty else 2)

    return twin.operator(lambda x: x * x, save=save, backward=backward)


@planted("changed input", trap=traps.CONTEXT_STATE)
def saved_as_an_attribute(twin: Twin) -> Any:
    def save(ctx: Any, inputs: Sequence[Any], output: Any) -> None:
        if twin.faulty:
            (ctx.x,) = inputs
        else:
            ctx.save_for_backward(*inputs)

    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return 2 * (ctx.x if twin.faulty else ctx.saved_tensors[0]) * grad

    return twin.operator(lambda x: x * x, save=save, backward=backward)


@planted("changed input", trap=traps.ERROR, reason="^RuntimeError: x is at version 1$")
def fails_after_a_change(twin: Twin) -> Any:
    """By an error that does not say that an input was changed in place."""

    def save(ctx: Any, inputs: Sequence[Any], output: Any) -> None:
        (ctx.x,) = inputs
        ctx.kept = ctx.x.detach().clone()

    def backward(ctx: Any, grad: Tensor) -> Tensor:
        if ctx.x._version and twin.faulty:
            raise RuntimeError(f"x is at version {ctx.x._version}")
        return 2 * ctx.kept * grad

    return twin.operator(lambda x: x * x, save=save, backward=backward)


@planted("unused output", trap=traps.UNDEFINED)
def every_gradient_needed(twin: Twin) -> Any:
    class Both(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
            ctx.set_materialize_grads(not twin.faulty)
            return x * 2, x * 3

        @staticmethod
        def backward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
            return a * 2 + b * 3

    return Both.apply


@planted("unused output", trap=traps.UNDEFINED)
def nothing_without_the_second(twin: Twin) -> Any:
    class Both(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
            ctx.set_materialize_grads(False)
            return x * 2, x * 3

        @staticmethod
        def backward(ctx: Any, a: Tensor | None, b: Tensor | None) -> Tensor | None:
            if b is None:
                return None if twin.faulty or a is None else a * 2
            return b * 3 if a is None else a * 2 + b * 3

    return Both.apply


@planted("checkpoint", trap=traps.CHECKPOINT)
def recomputed_otherwise(twin: Twin) -> Any:
    """Each time that it runs the saved factor is another one."""
    calls = [0]

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            calls[0] += 1
            ctx.save_for_backward(torch.full_like(x, calls[0] if twin.faulty else 2))
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad * ctx.saved_tensors[0]

    return Scaled.apply


@planted("checkpoint", trap=traps.CHECKPOINT)
def another_result_without_a_graph(twin: Twin) -> Any:
    """Reentrant checkpoints run it without a graph first."""
    return lambda x: x * (2 if torch.is_grad_enabled() or not twin.faulty else 3)


@planted("selective", trap=traps.CHECKPOINT)
def counts_its_calls(twin: Twin) -> Any:
    calls = [0]

    def kernel(x: Tensor) -> Tensor:
        calls[0] += 1
        return x * 2 + (calls[0] if twin.faulty else 1)

    return twin.operator(kernel, backward=doubled)


@planted("selective", trap=traps.CHECKPOINT)
def another_result_in_backward(twin: Twin) -> Any:
    """What a policy saves is not computed again, and is right."""

    def kernel(x: Tensor) -> Tensor:
        backward = torch._C._current_graph_task_id() != -1
        return x * (3 if backward and twin.faulty else 2)

    return twin.operator(kernel, backward=doubled)


@planted("selective", trap=traps.LOST_WRITE)
def written_and_not_returned(twin: Twin) -> Any:
    """A checkpoint that saves its results saves nothing of what it writes."""

    class InPlace(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            with torch.inference_mode():  # below autograd
                op(x)
            ctx.mark_dirty(x)
            return x

        backward = staticmethod(doubled)

    returns = not twin.faulty
    op = twin.operator(
        lambda x: x.mul_(2) if returns else (x.mul_(2), None)[1],
        f"(Tensor(a!) x) -> {'Tensor(a!)' if returns else '()'}",
        fake=lambda x: x if returns else None,
    )
    library.impl(
        twin.name,
        lambda x: InPlace.apply(x) if returns else (InPlace.apply(x), None)[1],
        "Autograd",
    )
    return op

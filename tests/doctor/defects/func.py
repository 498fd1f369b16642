"""torch.func."""

from __future__ import annotations

from typing import Any

import torch
from doctor.defects.declare import Twin, library, planted, random, square_backward
from fusewheel.doctor import traps
from torch import Tensor

TRANSFORMS = "FuncTorchDynamicLayerFrontMode"
EVERY = ("grad", "vjp", "jvp", "jacrev", "jacfwd", "hessian", "vmap", "vmap of grad")


@planted(*EVERY, "functional_call", trap=traps.WRONG_TRANSFORM)
def another_formula_under_transforms(twin: Twin) -> Any:
    """The kernel squares; what stands for it in torch.func does not."""
    op = twin.operator(lambda x: x * x, backward=square_backward)
    library.impl(twin.name, lambda x: x**3 if twin.faulty else x * x, TRANSFORMS)
    return op


class Square(torch.autograd.Function):
    """As torch.func wants it."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x * x

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    backward = staticmethod(square_backward)


class OldSquare(torch.autograd.Function):
    """Without setup_context."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    backward = staticmethod(square_backward)


@planted("grad", "vjp", "jacrev", "functional_call", trap=traps.NO_FUNC_RULE)
def function_without_setup_context(twin: Twin) -> Any:
    return OldSquare.apply if twin.faulty else Square.apply


@planted("jvp", "jacfwd", "hessian", trap=traps.SILENT_TANGENT)
def function_without_jvp(twin: Twin) -> Any:
    if twin.faulty:
        return Square.apply
    return lambda x: x * x


@planted("vmap", "vmap of grad", trap=traps.NO_VMAP_RULE)
def function_without_a_batching_rule(twin: Twin) -> Any:
    class Unbatched(Square):
        generate_vmap_rule = not twin.faulty

    return Unbatched.apply


@planted("vmap", trap=traps.WRONG_TRANSFORM)
def batches_the_mean(twin: Twin) -> Any:
    """Its rule takes the mean of the whole batch for that of each part."""
    op = twin.operator(lambda x: x - x.mean())

    def rule(info: Any, dims: Any, x: Tensor) -> tuple[Tensor, int]:
        x = x.movedim(dims[0], 0)
        inner = tuple(range(1, x.dim()))
        return x - (x.mean() if twin.faulty else x.mean(inner, keepdim=True)), 0

    torch.library.register_vmap(op, rule, lib=library)
    return op


@planted("vmap", trap=traps.WRONG_TRANSFORM, samples=[(random(3, 3), random(3, 3))])
def batches_the_first_alone(twin: Twin) -> Any:
    """Its rule takes for granted that both are batched, or the first."""
    op = twin.operator(
        lambda x, y: x - y,
        "(Tensor x, Tensor y) -> Tensor",
        fake=lambda x, y: torch.empty_like(x),
    )

    def rule(info: Any, dims: Any, x: Tensor, y: Tensor) -> tuple[Tensor, int]:
        if twin.faulty and dims[0] is None:
            return x - y[:1].expand_as(y), 0
        return x - y, 0

    torch.library.register_vmap(op, rule, lib=library)
    return op


@planted("vmap of grad", trap=traps.WRONG_TRANSFORM)
def batches_its_gradient_wrongly(twin: Twin) -> Any:
    class Batched(Square):
        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return slope(x, grad)

    slope = twin.operator(
        lambda x, grad: 2 * x * grad,
        "(Tensor x, Tensor grad) -> Tensor",
        fake=lambda x, grad: torch.empty_like(x),
        name=f"{twin.name}_slope",
    )

    def rule(info: Any, dims: Any, x: Tensor, grad: Tensor) -> tuple[Tensor, int]:
        return (1 if twin.faulty else 2) * x * grad, 0

    torch.library.register_vmap(slope, rule, lib=library)
    return Batched.apply

"""First derivatives, forward mode, and regions without autograd."""

from __future__ import annotations

from typing import Any

import torch
from doctor.defects.declare import Twin, doubled, planted, random, square_backward
from fusewheel.doctor import traps
from torch import Tensor


@planted("gradient", trap=traps.MISSING_GRADIENT)
def no_gradient(twin: Twin) -> Any:
    return twin.operator(lambda x: x * x, backward=None if twin.faulty else square_backward)


@planted("gradient", trap=traps.MISSING_GRADIENT)
def detached_in_forward(twin: Twin) -> Any:
    def kernel(x: Tensor) -> Tensor:
        return (x.detach() if twin.faulty else x) * 2

    return twin.operator(kernel, keys=("CompositeImplicitAutograd",), fake=None)


@planted("gradient", trap=traps.MISSING_GRADIENT)
def gradient_of_none(twin: Twin) -> Any:
    return twin.operator(
        lambda x: x * 2, backward=(lambda ctx, grad: None) if twin.faulty else doubled
    )


@planted("gradient", trap=traps.WRONG_GRADIENT)
def half_of_the_gradient(twin: Twin) -> Any:
    factor = 1 if twin.faulty else 2
    return twin.operator(
        lambda x: x * x, backward=lambda ctx, grad: factor * ctx.saved_tensors[0] * grad
    )


@planted("gradient", trap=traps.WRONG_GRADIENT, samples=[(random(3), random(3))])
def one_of_two_gradients(twin: Twin) -> Any:
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None]:
        x, y = ctx.saved_tensors
        return grad * y, None if twin.faulty else grad * x

    return twin.operator(
        lambda x, y: x * y,
        "(Tensor x, Tensor y) -> Tensor",
        fake=lambda x, y: torch.empty_like(x),
        backward=backward,
    )


MANY = [(random(6, 30),)]


@planted("gradient", trap=traps.WRONG_GRADIENT, samples=MANY)
def gradient_of_the_last_of_many(twin: Twin) -> Any:
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        factor = torch.full_like(grad, 2)
        if twin.faulty and grad.numel() == 180:
            factor[-1, -1] = 1.9
        return factor * ctx.saved_tensors[0] * grad

    return twin.operator(lambda x: x * x, backward=backward)


def float32_alone(x: Tensor) -> Tensor:
    if x.dtype != torch.float32:
        raise RuntimeError("x must be float32")
    return x * x


@planted("gradient", trap=traps.WRONG_GRADIENT)
def wrong_in_float32_alone(twin: Twin) -> Any:
    factor = 3 if twin.faulty else 2
    return twin.operator(
        float32_alone, backward=lambda ctx, grad: grad * factor * ctx.saved_tensors[0]
    )


@planted("gradient", trap=traps.MISSING_GRADIENT)
def zero_in_float32_alone(twin: Twin) -> Any:
    factor = 0 if twin.faulty else 2
    return twin.operator(
        float32_alone, backward=lambda ctx, grad: grad * factor * ctx.saved_tensors[0]
    )


@planted("forward mode", trap=traps.SILENT_TANGENT)
def tangent_lost(twin: Twin) -> Any:
    """PyTorch's fallback drops the tangent, without a word."""
    if twin.faulty:
        return twin.operator(lambda x: x * x, backward=square_backward)
    return twin.operator(lambda x: x * x, keys=("CompositeImplicitAutograd",), fake=None)


@planted("forward mode", trap=traps.SILENT_TANGENT)
def through_a_list(twin: Twin) -> Any:
    """Neither a tangent nor a graph comes through."""
    return lambda x: torch.tensor((2 * x).tolist(), dtype=x.dtype) if twin.faulty else 2 * x


@planted("forward mode", "jvp", "jacfwd", trap=traps.WRONG_TRANSFORM)
def half_of_the_tangent(twin: Twin) -> Any:
    class Square(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return x * x

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.save_for_backward(*inputs)
            ctx.save_for_forward(*inputs)

        backward = staticmethod(square_backward)

        @staticmethod
        def jvp(ctx: Any, tangent: Tensor) -> Tensor:
            return (1 if twin.faulty else 2) * ctx.saved_tensors[0] * tangent

    return Square.apply


@planted("no grad", trap=traps.INFERENCE)
def turns_autograd_on(twin: Twin) -> Any:
    def function(x: Tensor) -> Tensor:
        with torch.set_grad_enabled(twin.faulty or torch.is_grad_enabled()):
            return x * x

    return function


@planted("no grad", trap=traps.INFERENCE)
def turns_autograd_on_for_one_result(twin: Twin) -> Any:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.set_grad_enabled(twin.faulty or torch.is_grad_enabled()):
            return x * x, x.detach() + 1

    return function


@planted("no grad", trap=traps.INFERENCE)
def another_result_in_inference(twin: Twin) -> Any:
    return lambda x: x * (3 if torch.is_inference_mode_enabled() and twin.faulty else 2)

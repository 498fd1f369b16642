"""Second derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from doctor.defects.declare import Twin, planted, random
from fusewheel.doctor import traps
from torch import Tensor


def cube(twin: Twin, slope: Callable[[Tensor, Tensor], Tensor], kernel: Any = None) -> Any:
    """`x * x * x`; the faulty twin's gradient is another function of x and the gradient."""

    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return slope(x, grad) if twin.faulty else 3 * x * x * grad

    return twin.operator(kernel or (lambda x: x * x * x), backward=backward)


@planted("second", trap=traps.WRONG_SECOND)
@planted("detached", trap=traps.LOST_SECOND)
def detaches_what_it_reads(twin: Twin) -> Any:
    return cube(twin, lambda x, grad: 3 * x.detach() ** 2 * grad)


@planted("second", "detached", trap=traps.WRONG_SECOND)
def detaches_one_factor(twin: Twin) -> Any:
    return cube(twin, lambda x, grad: 3 * x * x.detach() * grad)


@planted("second", trap=traps.WRONG_SECOND, samples=[(random(6, 30),)])
def detaches_one_of_many(twin: Twin) -> Any:
    def slope(x: Tensor, grad: Tensor) -> Tensor:
        if x.numel() == 180:
            x = torch.cat((x.flatten()[:-1], x.detach().flatten()[-1:])).view(x.shape)
        return 3 * x * x * grad

    return cube(twin, slope)


@planted(
    "detached", trap=traps.LOST_SECOND, reason="tensor 0 changes with the gradient of output 0"
)
def detaches_its_gradient(twin: Twin) -> Any:
    return cube(twin, lambda x, grad: 3 * x * x * grad.detach())


@planted("detached", trap=traps.WRONG_SECOND, samples=[(random(30, 10),)])
def detaches_of_many_elements(twin: Twin) -> Any:
    """More of them than gradgradcheck is given."""
    return cube(twin, lambda x, grad: 3 * x * x.detach() * grad)


@planted("detached", trap=traps.LOST_SECOND)
def detaches_in_float32_alone(twin: Twin) -> Any:
    def kernel(x: Tensor) -> Tensor:
        if x.dtype != torch.float32:
            raise RuntimeError("x must be float32")
        return x * x * x

    return cube(twin, lambda x, grad: 3 * x.detach() ** 2 * grad, kernel)


@planted("detached", trap=traps.LOST_SECOND)
def backward_without_a_derivative(twin: Twin) -> Any:
    """The operator that the backward pass calls has no derivative of its own."""

    def kernel(x: Tensor, grad: Tensor) -> Tensor:
        with torch.no_grad():
            return 3 * x * x * grad

    slope = twin.operator(
        kernel,
        "(Tensor x, Tensor grad) -> Tensor",
        fake=lambda x, grad: torch.empty_like(x),
        name=f"{twin.name}_slope",
    )
    return cube(twin, slope)


@planted("detached", trap=traps.LOST_SECOND, samples=[(random(3), random(3) + 2)])
def detaches_one_gradient_of_two(twin: Twin) -> Any:
    """What gradgradcheck leaves out: a gradient without a graph beside one that has one."""

    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, y = ctx.saved_tensors
        first = 2 * x * y * grad
        return first.detach() if twin.faulty else first, x * x * grad

    return twin.operator(
        lambda x, y: x * x * y,
        "(Tensor x, Tensor y) -> Tensor",
        fake=lambda x, y: torch.empty_like(x),
        backward=backward,
    )

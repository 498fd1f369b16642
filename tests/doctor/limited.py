"""Functions that are at the limits of what columns apply to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from fusewheel.doctor.columns.values import MANY
from torch import Tensor


def unless(condition: Callable[[Tensor], bool], message: str) -> Callable[[Tensor], Tensor]:
    """Squares a tensor unless a condition holds, which is an error of two lines."""

    def function(x: Tensor) -> Tensor:
        if condition(x):
            raise RuntimeError(f"{message}\nfound: another")
        return x * x

    return function


def twice(x: Tensor) -> Tensor:
    return x * 2


def without_gradient(x: Tensor) -> Tensor:
    return x * 2


def in_pieces(x: Tensor) -> Tensor:
    return x.sin() * 2


def scaled(x: Tensor, factor: float) -> Tensor:
    return x * factor


def unless_factor(refused: float) -> Callable[[Tensor, float], Tensor]:
    """Multiplies by any factor but one."""

    def function(x: Tensor, factor: float) -> Tensor:
        if factor == refused:
            raise ValueError(f"factor must not be {refused}")
        return x * factor

    function.__name__ = f"unless_factor_{int(100 * refused)}"
    return function


def dense_alone(x: Tensor) -> None:
    if not x.is_contiguous():
        raise RuntimeError("x must be contiguous\nfound: another")
    x.mul_(2)


def doubled_and_more(x: Tensor) -> Tensor:
    return x.mul_(2) + 1


def unscaled(x: Tensor, factor: float) -> Tensor:
    return x * 2


def same_dtypes(x: Tensor, y: Tensor) -> Tensor:
    if x.dtype != y.dtype:
        raise RuntimeError("y must have the dtype of x\nfound: another")
    return x * y


def nowhere(x: Tensor) -> Tensor:
    raise NotImplementedError("not on this device")


def first_alone(x: Tensor, y: Tensor) -> Tensor:
    return x * x.expand_as(y)


def second_alone(x: Tensor, y: Tensor) -> Tensor:
    return y * y.expand_as(x)


def flat_too(x: Tensor) -> tuple[Tensor, Tensor]:
    return x * 2, x.flatten()


def in_float64(x: Tensor) -> Tensor:
    return torch.sum(x, 1, dtype=torch.float64)


class Squares(torch.autograd.Function):
    """Two squares; autograd has a gradient for the first alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)
        second = x * x
        ctx.mark_non_differentiable(second)
        return x * x, second

    @staticmethod
    def backward(ctx: Any, grad: Tensor, none: Tensor) -> Tensor:
        return 2 * ctx.saved_tensors[0] * grad

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> tuple[Tensor, None]:
        return 2 * ctx.saved_tensors[0] * tangent, None


def first_in_float32(x: Tensor, y: Tensor) -> Tensor:
    return in_float32(x)


def of_two_dtypes(x: Tensor, y: Tensor) -> Tensor:
    if (x.dtype, y.dtype) != (torch.float32, torch.float64):
        raise RuntimeError("x must be float32 and y float64")
    return x * x * y


def most_for_none(x: Tensor) -> Tensor:
    return x.new_zeros(MANY) if not x.numel() else x * 2


def every_result(x: Tensor) -> tuple[Tensor, Tensor]:
    first, second = Squares.apply(x)
    return first, second


def two_results(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x * y, x.sum()


def second_back(x: Tensor, y: Tensor) -> Tensor:
    return y.view(y.shape)


def little(x: Tensor) -> Tensor:
    return in_float32(x) * 1e-4


def much(x: Tensor) -> Tensor:
    return in_float32(x) * 1e3


in_float32 = unless(lambda x: x.dtype != torch.float32, "x must be float32")

"""Operators as functions of their tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from fusewheel.dispatch.operator import Operator
from torch import Tensor


def functional(operator: Operator) -> Callable[..., Any]:
    """The operator as a function of its tensors with tensor results, whatever it writes."""
    return without_writing(operator, operator.overload)


def eager(operator: Operator) -> Callable[..., Any]:
    """The same for its reference."""
    return without_writing(operator, operator.reference)


def without_writing(operator: Operator, write: Callable[..., Any]) -> Callable[..., Any]:
    if operator.mutates is None:
        return write

    def function(*given: Any) -> Tensor:
        arguments = list(given)
        # A fresh output each time: finite differences call the function over and over.
        out = arguments[operator.mutates]
        out = out.clone() if operator.in_place else torch.zeros_like(out).detach()
        arguments[operator.mutates] = out
        write(*arguments)
        return out

    return function


def differentiable(operator: Operator, arguments: tuple[Any, ...]) -> list[int]:
    """Which arguments may need a gradient."""
    return [
        i
        for i, a in enumerate(arguments)
        if isinstance(a, Tensor)
        and (operator.in_place or i != operator.mutates)
        and a.is_floating_point()
    ]


WORDS = {"kind": "Q4_0"}
"""What public functions take by name, without a default, and operators by number."""

"""How autocast converts an operator's arguments."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fusewheel._torch.dispatcher import autocast_off
from fusewheel._torch.overloads import shortest_call
from fusewheel.dispatch.operator import Arguments, Operator


def autocast_kernel(operator: Operator, device: str) -> Callable[..., Any]:
    """The kernel for `Autocast<device>`: it casts, then calls the operator without autocast."""
    call = shortest_call(operator.overload)
    without_autocast = autocast_off(device)
    lower = device.lower() if operator.autocast == "lower" else None
    written = operator.mutates
    left_alone = operator.statistics

    def changes(i: int, argument: Any) -> bool:
        return isinstance(argument, Tensor) and argument.is_floating_point() and i not in left_alone

    def cast(arguments: Arguments, dtype: torch.dtype) -> Arguments:
        return tuple(a.to(dtype) if changes(i, a) else a for i, a in enumerate(arguments))

    def kernel(*arguments: Any) -> Any:
        dtypes = {a.dtype for i, a in enumerate(arguments) if changes(i, a)}
        if written is not None and isinstance(arguments[written], Tensor):
            arguments = cast(arguments, arguments[written].dtype)
        # float64 is never lowered, as in PyTorch's own rules.
        elif torch.float64 not in dtypes:
            if lower is not None:
                arguments = cast(arguments, torch.get_autocast_dtype(lower))
            elif len(dtypes) > 1:
                arguments = cast(arguments, functools.reduce(torch.promote_types, dtypes))
        with without_autocast():
            return call(*arguments)

    return kernel

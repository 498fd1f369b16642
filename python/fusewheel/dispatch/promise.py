"""What an operator promises about its results and what it refuses, without calling a kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor

from fusewheel.dispatch.operator import Arguments, Operator

Argument = tuple[str, Tensor]
"""The name of an argument, and the tensor."""


def fail(op: str, message: str) -> NoReturn:
    """Raises the error of a call that an operator refuses."""
    raise RuntimeError(f"{op}: {message}")


def check_layout(op: str, argument: Argument) -> None:
    """Raises an error unless a tensor is dense."""
    name, tensor = argument
    if tensor.layout != torch.strided or tensor.is_quantized:
        kind = "quantized" if tensor.is_quantized else str(tensor.layout)
        fail(op, f"{name} must be a dense tensor (layout torch.strided), got {kind}")


def check_same_device(op: str, argument: Argument, first: Argument) -> None:
    """Raises an error unless a tensor is on the device of the first one."""
    name, tensor = argument
    if tensor.device != first[1].device:
        fail(
            op,
            f"{name} must be on the device of {first[0]}, {first[1].device}, got {tensor.device}",
        )


def check_tensors(op: str, names: Sequence[str], optional: Sequence[bool], given: Any) -> None:
    """Raises an error unless all tensors are there, dense and on one device."""
    first: Argument | None = None
    for name, may_be_none, value in zip(names, optional, given, strict=True):
        if value is None and not may_be_none:
            fail(op, f"{name} must be a tensor, got None")
        if not isinstance(value, Tensor):
            continue
        check_layout(op, (name, value))
        if first is None:
            first = name, value
        check_same_device(op, (name, value), first)


def checked_fake(operator: Operator) -> Callable[..., Any]:
    """The fake of an operator, after a check that all tensors are dense and on one device."""
    check = _tensor_check(operator)

    def fake(*arguments: Any) -> Any:
        # A mixture of a device and `meta` comes here, not to a kernel.
        check(arguments)
        return operator.fake(*arguments)

    return fake


def promise(operator: Operator) -> Callable[..., Any]:
    """A function from the arguments of an operator to its results, on the `meta` device.

    It raises the errors of the kernel. Code that runs the reference instead of the kernel calls it
    first.
    """
    check = _tensor_check(operator)

    def promised(*arguments: Any) -> Any:
        check(arguments)
        return operator.fake(
            *(_without_memory(a) if isinstance(a, Tensor) else a for a in arguments)
        )

    return promised


def _tensor_check(operator: Operator) -> Callable[[Arguments], None]:
    schema = operator.overload._schema.arguments
    names = [argument.name for argument in schema]
    optional = [str(argument.type) != "Tensor" for argument in schema]
    return partial(check_tensors, operator.name, names, optional)


def _without_memory(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")

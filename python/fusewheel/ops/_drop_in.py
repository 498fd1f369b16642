"""Public functions that have the arguments of PyTorch's functions.

Their operators keep the names that they have in the schema: `x` or `q`, where PyTorch says `input`
or `query`.
"""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from fusewheel.dispatch.promise import fail
from fusewheel.ops._not_tensors import refuse_others

_P = ParamSpec("_P")
_R = TypeVar("_R")
Arguments = tuple[Any, ...]
Keywords = dict[str, Any]
_FLOATING = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def drop_in(
    operator: str,
    names: dict[str, str],
    former: Callable[..., Any] | None = None,
    is_former: Callable[[Arguments, Keywords], bool] | None = None,
    scripted: Callable[..., Any] | None = None,
    short: Callable[..., Any] | None = None,
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Decorates a function that has the arguments of a function of PyTorch.

    Args:
        operator: the operator whose errors the function hands on.
        names: for arguments of the operator the names that the function gives to them; its errors
            say these.
        former: the function with the arguments that it had before. It still runs, with a
            `DeprecationWarning`; default None, where it had no others.
        is_former: whether a call has those arguments.
        scripted: what TorchScript compiles instead; default the function itself. TorchScript knows
            no keyword-only arguments.
        short: the function for usual arguments with as few steps as there can be, because each
            shows where tensors are small. It returns None for other arguments, and where it fails
            the function itself is called, to do it or to say what is wrong. Dynamo does not
            compile it.
    """

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        name = function.__name__
        words = re.compile(rf"\b({'|'.join(names)})\b")
        is_dynamo_compiling = torch.compiler.is_dynamo_compiling

        @functools.wraps(function)
        def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            compiling = is_dynamo_compiling()
            if short is not None and not compiling:
                try:
                    result: _R | None = short(*args, **kwargs)
                except Exception:
                    result = None
                if result is not None:
                    return result
            if is_former is not None and former is not None and is_former(args, kwargs):
                if not compiling:
                    _warn(name)
                with_former: _R = former(*args, **kwargs)
                return with_former
            if compiling:
                return function(*args, **kwargs)
            try:
                return function(*args, **kwargs)
            except (AttributeError, TypeError):
                refuse_others(function, args, kwargs)
                raise
            except RuntimeError as error:
                message = str(error)
                if type(error) is not RuntimeError or not message.startswith(f"{operator}: "):
                    raise
                message = message.removeprefix(operator)
                renamed = words.sub(lambda found: names[found[0]], message)
                raise RuntimeError(f"{name}{renamed}") from None

        # A hook of `torch.jit.script`.
        vars(call)["__prepare_scriptable__"] = lambda: scripted or function
        return call

    return decorate


def _warn(name: str) -> None:
    warnings.warn(
        f"fusewheel.{name} was called with its former arguments, which the next release refuses; "
        f"call it with those of torch.nn.functional.{name}",
        DeprecationWarning,
        stacklevel=3,
    )


def sizes(op: str, normalized_shape: int | Sequence[int]) -> list[int]:
    """The sizes that a norm works on, as a list.

    Raises:
        RuntimeError: there are none.
    """
    if isinstance(normalized_shape, int):
        return [normalized_shape]
    found = list(normalized_shape)
    if not found:
        fail(op, "normalized_shape must have at least one dimension, got []")
    return found


def is_last(normalized_shape: int | Sequence[int], weight: Tensor, x: Tensor) -> bool:
    """Whether a norm works on the last dimension, as far as its weight says: that the input has so
    many columns is left to the operator.
    """
    if isinstance(normalized_shape, int):
        normalized_shape = (normalized_shape,)
    elif isinstance(normalized_shape, list):
        normalized_shape = tuple(normalized_shape)
    return (
        weight.shape == normalized_shape and len(normalized_shape) == 1 and weight.dtype == x.dtype
    )


def check_normalized(
    op: str, x: Tensor, normalized_shape: list[int], weight: Tensor | None, bias: Tensor | None
) -> None:
    """Raises an error unless shapes fit a norm's. TorchScript and Dynamo compile it."""
    rank = len(normalized_shape)
    if rank == 1 and list(x.shape[-1:]) == normalized_shape:
        # The operator checks the others, and so few calls are made for small tensors.
        return
    shape = list(x.shape)
    if len(shape) < rank or shape[len(shape) - rank :] != normalized_shape:
        raise RuntimeError(
            f"{op}: input must have a shape that ends with {normalized_shape} (normalized_shape), "
            f"got {shape}"
        )
    if weight is not None and list(weight.shape) != normalized_shape:
        raise RuntimeError(
            f"{op}: weight must have shape {normalized_shape} (normalized_shape), "
            f"got {list(weight.shape)}"
        )
    if bias is not None and list(bias.shape) != normalized_shape:
        raise RuntimeError(
            f"{op}: bias must have shape {normalized_shape} (normalized_shape), "
            f"got {list(bias.shape)}"
        )


def is_mixture(x: Tensor, *parameters: Tensor | None) -> bool:
    """Whether floating dtypes differ, which the operators refuse and PyTorch's functions may take.

    Under autocast the operators make them equal.
    """
    own = x.dtype
    others = [p.dtype for p in parameters if p is not None and p.dtype != own]
    if not others or torch.is_autocast_enabled(x.device.type):
        return False
    return all(dtype in _FLOATING for dtype in (own, *others))

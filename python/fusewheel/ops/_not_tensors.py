"""The error of a public function that is given something else where it takes a tensor."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

_P = ParamSpec("_P")
_R = TypeVar("_R")


def refuse_others(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """Raises an error if an argument should be a tensor and is none.

    Called after the function has failed, so that a call that succeeds pays nothing.

    Raises:
        TypeError: names the first such argument, and what was given.
    """
    signature = inspect.signature(function)
    try:
        given = signature.bind(*args, **kwargs).arguments
    except TypeError:  # too many arguments, or too few: that is the function's own error
        return
    for name, value in given.items():
        wanted = str(signature.parameters[name].annotation)
        optional = wanted == "Tensor | None"
        if wanted != "Tensor" and not optional:
            continue
        if not isinstance(value, Tensor) and not (optional and value is None):
            kind = "None" if value is None else f"a {type(value).__name__}"
            raise TypeError(f"{function.__name__}: {name} must be a tensor, got {kind}") from None


def with_type_errors(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """The function, whose error says which argument is no tensor."""

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        if torch.compiler.is_compiling():
            return function(*args, **kwargs)
        try:
            return function(*args, **kwargs)
        except (AttributeError, TypeError):
            refuse_others(function, args, kwargs)
            raise

    # A hook of `torch.jit.script`.
    vars(call).setdefault("__prepare_scriptable__", lambda: function)
    return call

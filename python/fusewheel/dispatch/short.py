"""The short way of a public function: it calls the `Autograd` kernel of its operator itself.

The dispatcher would call the same kernel, which is Python; for small tensors the way there takes
longer than the operator. The dispatcher is needed where something stands before that kernel: a
mode, a subclass of `Tensor`, a transform of `torch.func`, autocast, or a tracer.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from fusewheel._torch.dispatcher import is_direct

_P = ParamSpec("_P")
_R = TypeVar("_R")
_kernels: dict[str, Callable[..., Any]] = {}
_holds_plain = frozenset((Tensor, torch.nn.Parameter, float, int, bool, type(None))).issuperset


def remember(name: str, kernel: Callable[..., Any]) -> None:
    """Make the `Autograd` kernel of an operator known."""
    _kernels[name] = kernel


def short_way(name: str) -> Callable[..., Any]:
    """What a public function calls in the place of `torch.ops.fusewheel.<name>`.

    It takes all arguments of the operator by position. Dynamo compiles it as a call of the
    operator; TorchScript does not compile it.
    """
    operator = getattr(torch.ops.fusewheel, name)

    def call(*arguments: Any) -> Any:
        if (
            torch.compiler.is_compiling()
            or not _holds_plain(map(type, arguments))
            or not is_direct()
        ):
            return operator(*arguments)
        return _kernels[name](*arguments)

    return call


def passes_on(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Decorates a function that has the name, the arguments and the result of its operator."""
    name = function.__name__
    count = function.__code__.co_argcount

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        if (
            torch.compiler.is_compiling()
            or kwargs
            or len(args) != count
            or not _holds_plain(map(type, args))
            or not is_direct()
        ):
            return function(*args, **kwargs)
        result: _R = _kernels[name](*args)
        return result

    # A hook of `torch.jit.script`.
    vars(call)["__prepare_scriptable__"] = lambda: function
    return call

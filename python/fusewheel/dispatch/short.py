"""The short way of a public function: it leaves out what the dispatcher would do in Python.

The kernel for `Autograd` is Python. For small tensors the way there and back takes longer than the
operator, so a call that needs no gradient goes to the dispatcher with autograd left out: all
else that may stand before the kernel of the device (a mode of `__torch_dispatch__`, autocast, a
tracer) sees the operator as ever. A call that needs a gradient is recorded without the dispatcher
if nothing stands before autograd.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from fusewheel._torch.autograd import LEVEL, any_requires_grad, forward_mode, skip_autograd
from fusewheel._torch.dispatcher import has_torch_function, is_seen, transforming
from fusewheel._torch.overloads import shortest_call

_P = ParamSpec("_P")
_R = TypeVar("_R")
_recorders: dict[str, Callable[..., Any]] = {}
_holds_plain = frozenset((Tensor, torch.nn.Parameter, float, int, bool, type(None))).issuperset


def remember(name: str, record: Callable[..., Any]) -> None:
    """Stores the function that calls an operator and records the call for its gradient."""
    _recorders[name] = record


def short_way(name: str) -> Callable[..., Any]:
    """What a public function calls in the place of `torch.ops.fusewheel.<name>`.

    It takes all arguments of the operator by position. Dynamo compiles it as a call of the
    operator; TorchScript does not compile it.
    """
    operator = getattr(torch.ops.fusewheel, name)
    return _way(name, operator, len(operator.default._schema.arguments))


def passes_on(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Decorates a function that has the name, the arguments and the result of its operator."""
    name = function.__name__
    call = functools.wraps(function)(_way(name, function, function.__code__.co_argcount))
    # A hook of `torch.jit.script`.
    vars(call)["__prepare_scriptable__"] = lambda: function
    return call


def _way(name: str, otherwise: Callable[..., Any], count: int) -> Callable[..., Any]:
    """The short way of an operator; what cannot take it is called by `otherwise`."""
    overload = getattr(torch.ops.fusewheel, name).default
    types = [str(argument.type) for argument in overload._schema.arguments]
    # Behind it there are no tensors, which are quickly asked where other things are not.
    last = max(i for i, kind in enumerate(types, 1) if "Tensor" in kind)
    run = shortest_call(overload)
    is_dynamo_compiling = torch.compiler.is_dynamo_compiling
    is_grad_enabled = torch.is_grad_enabled
    forward_level = forward_mode.get

    def call(*args: Any, **kwargs: Any) -> Any:
        if (
            is_dynamo_compiling()
            or kwargs
            or len(args) != count
            # What may need more of autograd than that an argument requires a gradient.
            or has_torch_function(*args)
            or transforming()
            or forward_level(LEVEL, 0) >= 0
        ):
            return otherwise(*args, **kwargs)
        if is_grad_enabled() and any_requires_grad(*args[:last]):
            if _holds_plain(map(type, args)) and not is_seen():
                return _recorders[name](*args)
            return otherwise(*args)
        below = skip_autograd()
        try:
            return run(*args)
        finally:
            del below

    return call

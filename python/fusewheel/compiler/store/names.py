"""Functions that graphs call, by names that hold in another process."""

from __future__ import annotations

import functools
import math
import operator
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F

from fusewheel._torch.overloads import OpOverload, OpOverloadPacket

_OPERATOR, _PACKET, _FUNCTION = "operator", "packet", "function"
_PACKAGES = "torch", "fusewheel"
# Functions written in C do not say in which module they are.
_MODULES: tuple[ModuleType, ...] = (
    *(torch, F, torch.special, torch.linalg, torch.fft),
    *(operator, math),
)

Name = tuple[str, ...]


class Unnamed(Exception):
    """Raised for what has no name that another process would know."""


@functools.cache
def name_of(function: Callable[..., Any]) -> Name:
    """The name of a function of Python, of PyTorch or of fusewheel, or of any operator.

    Raises:
        Unnamed: for any other function.
    """
    if isinstance(function, OpOverload):
        schema = function._schema
        return _OPERATOR, schema.name, schema.overload_name
    if isinstance(function, OpOverloadPacket):
        return _PACKET, str(function).replace(".", "::", 1)
    paths = getattr(function, "__name__", ""), getattr(function, "__qualname__", "")
    for module in (*_MODULES, _module_of(function)):
        for path in paths:
            if module is not None and path and _attribute(module, path) is function:
                return _FUNCTION, module.__name__, path
    raise Unnamed(f"{function} has no name that another process would know")


def named(name: Name) -> Callable[..., Any]:
    """The function with a name that `name_of` gave.

    Raises:
        Unnamed: if there is none in this process.
    """
    kind, *path = name
    if kind == _FUNCTION:
        modules = {module.__name__: module for module in _MODULES}
        module = modules.get(path[0]) or _loaded(path[0])
        found = None if module is None else _attribute(module, path[1])
    else:
        namespace, _, operator_name = path[0].partition("::")
        found = getattr(getattr(torch.ops, namespace), operator_name, None)
        if kind == _OPERATOR and found is not None:
            found = getattr(found, path[1] or "default", None)
    # A path could lead to something else that a module of torch imports.
    if found is None or name_of(found) != tuple(name):
        raise Unnamed(f"there is no {'.'.join(path)}")
    function: Callable[..., Any] = found
    return function


def _module_of(function: Callable[..., Any]) -> ModuleType | None:
    return _loaded(getattr(function, "__module__", None) or "")


def _loaded(name: str) -> ModuleType | None:
    """A module of PyTorch or fusewheel."""
    return sys.modules.get(name) if name.partition(".")[0] in _PACKAGES else None


def _attribute(module: ModuleType, path: str) -> Any:
    found: Any = module
    for part in path.split("."):
        found = getattr(found, part, None)
    return found

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
_HOMES: tuple[ModuleType, ...] = (
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
    own = getattr(function, "__name__", ""), getattr(function, "__qualname__", "")
    for home in (*_HOMES, _home_of(function)):
        for path in own:
            if home is not None and path and _attribute(home, path) is function:
                return _FUNCTION, home.__name__, path
    raise Unnamed(f"{function} has no name that another process would know")


def named(name: Name) -> Callable[..., Any]:
    """The function with a name that `name_of` gave.

    Raises:
        Unnamed: if there is none in this process.
    """
    kind, *path = name
    if kind == _FUNCTION:
        room, own = path
        homes = {home.__name__: home for home in _HOMES}
        home = homes.get(room) or (sys.modules.get(room) if _is_known(room) else None)
        found = None if home is None else _attribute(home, own)
    else:
        space, _, own = path[0].partition("::")
        found = getattr(getattr(torch.ops, space), own, None)
        if kind == _OPERATOR and found is not None:
            found = getattr(found, path[1] or "default", None)
    # A path could lead to something else that a module of torch imports.
    if found is None or name_of(found) != tuple(name):
        raise Unnamed(f"there is no {'.'.join(path)}")
    function: Callable[..., Any] = found
    return function


def _home_of(function: Callable[..., Any]) -> ModuleType | None:
    name = getattr(function, "__module__", None) or ""
    return sys.modules.get(name) if _is_known(name) else None


def _is_known(module: str) -> bool:
    return module.partition(".")[0] in _PACKAGES


def _attribute(home: ModuleType, path: str) -> Any:
    found: Any = home
    for part in path.split("."):
        found = getattr(found, part, None)
    return found

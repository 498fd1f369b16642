"""Finds operators and functions by the names in a command line or a configuration file."""

from __future__ import annotations

import importlib
from typing import Any

import torch


def named(name: str) -> Any:
    """The object that `module:attribute` names.

    Raises:
        ValueError: there is no colon.
    """
    module, _, attribute = name.partition(":")
    if not attribute:
        raise ValueError(f"expected module:function, got '{name}'")
    return getattr(importlib.import_module(module), attribute)


def operator_named(name: str) -> Any:
    """The operator `ns::name` or `ns::name.overload`, or the function `module:function`.

    Raises:
        AttributeError: no operator, or no function of the module, has this name.
    """
    if "::" not in name:
        return named(name)
    namespace, _, rest = name.partition("::")
    operator, _, overload = rest.partition(".")
    try:
        packet = getattr(getattr(torch.ops, namespace), operator)
        return getattr(packet, overload) if overload else packet
    except AttributeError as error:
        raise AttributeError(
            f"there is no operator {name}; --import names a module that registers it"
        ) from error

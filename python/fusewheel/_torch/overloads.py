"""The classes of operators, and how one is called with the least overhead."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from fusewheel._torch.find import find

if TYPE_CHECKING:
    from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
else:
    OpOverload = type(torch.ops.aten.add.Tensor)
    OpOverloadPacket = type(torch.ops.aten.add)
    HigherOrderOperator = find(
        "torch._ops.HigherOrderOperator",
        "recognise operators that call graphs",
        type("HigherOrderOperator", (), {}),
    )

__all__ = ["HigherOrderOperator", "OpOverload", "OpOverloadPacket", "name_of_call", "shortest_call"]


def shortest_call(overload: OpOverload) -> Callable[..., Any]:
    """The function that `overload(...)` calls, which saves a Python call; or the overload."""
    call: Callable[..., Any] = getattr(overload, "_op", overload)
    return call


def name_of_call(overload: OpOverload) -> str:
    """A name of an overload that is an identifier."""
    return overload.name().partition("::")[2].replace(".", "_")

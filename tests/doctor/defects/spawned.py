"""What a spawned process imports to have operators."""

from __future__ import annotations

import multiprocessing
from typing import Any

import torch

_library = torch.library.Library("spawned", "DEF")
_FIRST = multiprocessing.parent_process() is None


def _double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


for _name, _kernel in (
    ("everywhere", _double),
    ("here", _double),
    ("another_there", lambda x: x * (2 if _FIRST else 3)),
):
    if _FIRST or _name != "here":
        _library.define(f"{_name}(Tensor x) -> Tensor")
        _library.impl(_name, _kernel, "CPU")


def registered(at_import: bool) -> Any:
    """An operator that a spawned process has, or has not."""
    return (torch.ops.spawned.everywhere if at_import else torch.ops.spawned.here).default


def scaled(faulty: bool) -> Any:
    """An operator that gives something else in a spawned process, or does not."""
    return (torch.ops.spawned.another_there if faulty else torch.ops.spawned.everywhere).default

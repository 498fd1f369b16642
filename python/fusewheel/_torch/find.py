"""Looks up private names of torch."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import torch

from fusewheel.errors import TorchChangedError

# The versions of torch that every name was seen on.
SEEN = "2.10 to 2.15"

_NOTHING = object()


@dataclass(frozen=True)
class Name:
    """A private name of torch.

    Attributes:
        path: the whole dotted name.
        purpose: what fusewheel does with it, to follow "which fusewheel needs to".
        fallback: whether there is something to use if the name is missing.
    """

    path: str
    purpose: str
    fallback: bool


# What was looked up so far, by path; and names that a test takes away.
looked_up: dict[str, Name] = {}
hidden: set[str] = set()


class Missing:
    """Stands for a name that this torch lacks; calling it raises an error that says so."""

    def __init__(self, name: Name) -> None:
        self._name = name

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Raise.

        Raises:
            TorchChangedError: always.
        """
        raise TorchChangedError(
            f"torch {torch.__version__} has no {self._name.path}, which fusewheel needs to "
            f"{self._name.purpose}; this fusewheel was tested with torch {SEEN}"
        )

    __rand__ = __call__


def find(path: str, purpose: str, otherwise: Any = _NOTHING) -> Any:
    """The object that has a dotted name.

    Args:
        path: the name; modules in it are imported.
        purpose: what fusewheel needs it for, to follow "which fusewheel needs to".
        otherwise: what to return where this torch lacks the name. Without it, that is an object
            that raises `TorchChangedError` when it is called.
    """
    name = looked_up[path] = Name(path, purpose, otherwise is not _NOTHING)
    found = _resolved(path)
    if found is not _NOTHING:
        return found
    return otherwise if name.fallback else Missing(name)


def _resolved(path: str) -> Any:
    if path in hidden:
        return _NOTHING
    found: Any = torch
    walked = "torch"
    for part in path.split(".")[1:]:
        walked += f".{part}"
        child = getattr(found, part, _NOTHING)
        if child is _NOTHING:
            # A module that is being imported is no attribute of its parent yet.
            try:
                child = importlib.import_module(walked)
            except ImportError:
                return _NOTHING
        found = child
    return found

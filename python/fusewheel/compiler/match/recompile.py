"""Makes Dynamo compile again what this backend compiled before patterns changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from fusewheel._torch import dynamo

_Backend = TypeVar("_Backend", bound=Callable[..., Any])
_own: list[object] = []


def remember_backend(backend: _Backend) -> _Backend:
    """Remember a backend: what it has compiled is dropped when patterns change."""
    _own.append(backend)
    return backend


def drop_compiled() -> None:
    """Drop what was compiled with ``backend="fusewheel"``: the next call compiles again.

    Dynamo keeps compiled code on the code object of a function. For such a function everything is
    dropped, also what other backends compiled, and they compile it again. If this torch keeps
    compiled code in an unknown way, everything that any backend compiled is dropped.
    """
    if dynamo.is_loaded():
        dynamo.forget_compiled(is_own)


def is_own(backend: object) -> bool:
    """Whether a backend, as Dynamo keeps it, is one of ours."""
    while (inner := getattr(backend, "compiler_fn", None)) is not None:
        backend = inner
    return any(backend is own for own in _own)

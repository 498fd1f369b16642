"""The kernel libraries of this process; importing this module loads them."""

from __future__ import annotations

from fusewheel._core.load import Backend, load_backends

_backends = load_backends()


def backends() -> tuple[Backend, ...]:
    """The installed kernel libraries: which are in use, and why the others are not."""
    return _backends

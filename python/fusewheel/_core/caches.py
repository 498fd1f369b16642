"""Keeps what one version of fusewheel has compiled from another version."""

from __future__ import annotations

from fusewheel._core.version import __version__
from fusewheel._torch.inductor import name_in_caches


def name_version_in_caches() -> None:
    """Have Inductor's caches tell the versions of fusewheel apart.

    They identify an operator by its name only. Another version, whose operators may return other
    strides, must not find the entries of this one. The import of fusewheel calls this; a thread in
    which ``torch.compiler.config.cache_key_tag`` was assigned since needs another call.
    """
    name_in_caches(f"fusewheel-{__version__}")

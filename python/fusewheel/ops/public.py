"""The public functions of all operators; `fusewheel` exports what is here."""

from __future__ import annotations

from fusewheel.ops import functions

globals().update(functions())
__all__ = sorted(functions())

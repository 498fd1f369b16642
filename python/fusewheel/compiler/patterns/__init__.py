"""The patterns, one in each file; a new file that declares ``PATTERN`` is found by itself."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from fusewheel.compiler.ir.pattern import Pattern


@cache
def all_patterns() -> tuple[Pattern, ...]:
    """All patterns of this package, in the order in which they run."""
    found = []
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        found.append(importlib.import_module(module.name).PATTERN)
    return tuple(sorted(found, key=lambda pattern: (pattern.order, pattern.name)))

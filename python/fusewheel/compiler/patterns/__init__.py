"""The patterns, one per file; a new file with a ``PATTERN`` is found without being listed."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from ..pattern import Pattern


@cache
def all_patterns() -> tuple[Pattern, ...]:
    """Every pattern of this package, in the order they run."""
    found = []
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        found.append(importlib.import_module(module.name).PATTERN)
    return tuple(sorted(found, key=lambda pattern: (pattern.order, pattern.name)))

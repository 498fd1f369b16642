"""The operators, one module for each in the folder of its family.

Every module in a family is found and registered, and its public functions are exported. It declares
`OPERATORS`. Modules whose names begin with an underscore are helpers.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

from fusewheel.dispatch.operator import Operator
from fusewheel.dispatch.register import register


def _stems() -> list[str]:
    """The modules of all operators, by name."""
    families = [m.name for m in pkgutil.iter_modules(__path__) if m.ispkg]
    found = []
    for family in families:
        package = importlib.import_module(f"{__name__}.{family}")
        stems = (module.name for module in pkgutil.iter_modules(package.__path__))
        found += [f"{package.__name__}.{stem}" for stem in stems if not stem.startswith("_")]
    return sorted(found)


_declared: dict[str, Operator] = {}

for _stem in _stems():
    for _operator in importlib.import_module(_stem).OPERATORS:
        register(_operator)
        _declared[_operator.name] = _operator


def operators() -> tuple[Operator, ...]:
    """Every operator's declaration, by name."""
    return tuple(_declared[name] for name in sorted(_declared))


def functions() -> dict[str, Callable[..., Any]]:
    """The public function of every operator that has one, by name."""
    return {o.name: o.function for o in operators() if o.function is not None}

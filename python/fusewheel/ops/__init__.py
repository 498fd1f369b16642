"""The operators, one module for each in the folder of its family.

Every module in a family is found and registered, and its public functions are exported. It declares
`OPERATORS`, and `FUNCTIONS` if it has public functions that call the operators of other modules.
Modules whose names begin with an underscore are helpers.
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
_functions: dict[str, Callable[..., Any]] = {}

for _stem in _stems():
    _module = importlib.import_module(_stem)
    for _operator in _module.OPERATORS:
        register(_operator)
        _declared[_operator.name] = _operator
        if _operator.function is not None:
            _functions[_operator.name] = _operator.function
    _functions |= {f.__name__: f for f in getattr(_module, "FUNCTIONS", ())}


def operators() -> tuple[Operator, ...]:
    """Every operator's declaration, by name."""
    return tuple(_declared[name] for name in sorted(_declared))


def functions() -> dict[str, Callable[..., Any]]:
    """The public functions of all operators, by name."""
    return dict(_functions)

"""The operators, one module each: whatever module lies here is found, registered and exported.

A module declares `OPERATORS`, and the public function it is named after.
"""

from __future__ import annotations

import importlib
import pkgutil

from fusewheel._operator import Operator
from fusewheel._register import register

_declared: dict[str, Operator] = {}
__all__: list[str] = []

for _module in sorted(module.name for module in pkgutil.iter_modules(__path__)):
    for _operator in importlib.import_module(f"{__name__}.{_module}").OPERATORS:
        register(_operator)
        _declared[_operator.name] = _operator
        if _operator.function is not None:
            globals()[_operator.name] = _operator.function
            __all__.append(_operator.name)


def operators() -> tuple[Operator, ...]:
    """Every operator's declaration, by name."""
    return tuple(_declared[name] for name in sorted(_declared))

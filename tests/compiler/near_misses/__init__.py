"""Functions that a pattern replaces, or just does not, without compiling anything.

`outcomes.txt` says what becomes of each. After a change `python -m compiler.near_misses`, in the
folder `tests`, writes it again: read the difference.
"""

from __future__ import annotations

import importlib
import pkgutil

from compiler.near_misses.cases import CASES, OUTCOMES, outcome

for _module in pkgutil.iter_modules(__path__):
    if _module.name != "__main__":
        importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["CASES", "OUTCOMES", "outcome"]

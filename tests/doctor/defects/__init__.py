"""Operators with one fault each, for the doctor to find; the names say which.

Each has a twin, the same operator without the fault, in which the doctor must find nothing.
Every file here is imported.
"""

from __future__ import annotations

import importlib
import pkgutil

from doctor.defects.declare import DEFECTS, Defect

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["DEFECTS", "Defect"]

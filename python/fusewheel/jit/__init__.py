"""TorchScript: fused operators in scripted and traced modules.

`optimize` gives one module; `enable` serves every module of the process. Importing this package
compiles nothing.
"""

from __future__ import annotations

from .optimize import explain, optimize
from .shapes import register_shape_functions
from .static import StaticModel
from .support import TorchScriptError
from .transparent import disable, enable

__all__ = [
    "StaticModel",
    "TorchScriptError",
    "disable",
    "enable",
    "explain",
    "optimize",
    "register_shape_functions",
]

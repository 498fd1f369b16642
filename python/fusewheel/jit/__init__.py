"""TorchScript: fused operators in scripted and traced modules.

`optimize` gives one module; `enable` serves every module of the process. Importing this package
compiles nothing.
"""

from __future__ import annotations

from .optimize import explain, optimize
from .shapes import register_shape_functions
from .support import TorchScriptError

__all__ = ["TorchScriptError", "explain", "optimize", "register_shape_functions"]

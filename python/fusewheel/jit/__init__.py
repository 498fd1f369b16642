"""TorchScript: fused operators in scripted and traced modules.

`optimize` returns one module with fused operators; `enable` serves all modules of the process.
Importing this package compiles nothing.
"""

from __future__ import annotations

from fusewheel.jit.entry import explain, optimize
from fusewheel.jit.shapes import register_shape_functions
from fusewheel.jit.static import StaticModel
from fusewheel.jit.support import TorchScriptError
from fusewheel.jit.transparent import disable, enable

__all__ = [
    "StaticModel",
    "TorchScriptError",
    "disable",
    "enable",
    "explain",
    "optimize",
    "register_shape_functions",
]

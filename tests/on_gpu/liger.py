"""Liger-Kernel's functions for the same layers, where it is installed."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

from on_gpu.timing import Call

FUNCTIONS: dict[str, Callable[[Any, tuple[Any, ...]], Call]] = {
    "rms_norm": lambda f, a: partial(f.liger_rms_norm, a[0], a[1], a[2]),
    "add_rms_norm": lambda f, a: partial(f.liger_fused_add_rms_norm, a[0], a[1], a[2], a[3]),
    "layer_norm": lambda f, a: partial(f.liger_layer_norm, a[0], a[1], a[2], a[3]),
    "silu_mul": lambda f, a: partial(f.liger_swiglu, a[0], a[1]),
    "gelu_mul": lambda f, a: partial(f.liger_geglu, a[0], a[1]),
    "rope": lambda f, a: partial(f.liger_rope, a[0], a[1], a[2], a[3]),
}
"""For each operator, a call of Liger's function with the operator's arguments.

Its cross entropy writes over the logits and cannot be repeated; it is left out.
"""


def liger(operator: str, arguments: tuple[Any, ...]) -> Call | None:
    """The call; None if it has no such function, or is not installed."""
    if operator not in FUNCTIONS:
        return None
    try:
        functions = importlib.import_module("liger_kernel.transformers.functional")
    except ImportError:
        return None
    return FUNCTIONS[operator](functions, arguments)

"""Compiled ahead of time, and run by a program without Python."""

from __future__ import annotations

from typing import Any

import torch
from doctor.defects.declare import Twin, planted, random
from fusewheel.doctor import traps

# The doctor looks for no smaller one, which would be another compilation.
SMALLEST = [(random(1),)]


@planted("AOTInductor", trap=traps.COMPILED_VALUES, samples=SMALLEST)
def another_formula_packaged(twin: Twin) -> Any:
    return lambda x: x * (3 if torch.compiler.is_exporting() and twin.faulty else 2)


@planted("C++ TorchScript", "C++ package", trap=traps.CPP, samples=SMALLEST)
def needs_python(twin: Twin) -> Any:
    """A function of PyTorch's that calls an operator defined in Python."""
    op = twin.operator(lambda x: x * 2)
    return lambda x: (op(x) if twin.faulty else x * 2) + 1

"""Programs: parts of a graph that one operator, ``fusewheel::run``, executes without Python.

A program is a uint8 tensor. It says which operators are called with which values, and what sizes
these have. `ProgramWriter` makes one, `add_step` lets programs call an operator of yours.
"""

from __future__ import annotations

from fusewheel.engine import run as run  # registers what Python adds to the operator
from fusewheel.engine.bound import bind, can_bind
from fusewheel.engine.operators import add_step, step_letters, step_operators
from fusewheel.engine.program import Number, Program, ProgramWriter

__all__ = [
    "Number",
    "Program",
    "ProgramWriter",
    "add_step",
    "bind",
    "can_bind",
    "step_letters",
    "step_operators",
]

"""Which dtypes and numbers the operators take, and the same value in several dtypes."""

from __future__ import annotations

import torch
from torch.fx import Node

from fusewheel.compiler.ir.canonical import widened_from
from fusewheel.compiler.ir.metadata import dtype_of, value_of

COMPUTED = frozenset({torch.float32, torch.bfloat16, torch.float16, torch.float64})


def in_dtype(node: Node, dtype: torch.dtype | None) -> tuple[Node, frozenset[Node]] | None:
    """The value of `node` before widening casts, as the node that has it in `dtype`.

    Returns:
        the node and the casts between, or None if the value never had that dtype.
    """
    chain = widened_from(node)
    found = None
    for position, candidate in enumerate(chain):
        if dtype_of(candidate) == dtype:
            found = candidate, frozenset(chain[:position])
    return found


def same_value(a: Node, b: Node) -> bool:
    """Whether two nodes are lossless casts of one value."""
    return widened_from(a)[-1] is widened_from(b)[-1]


def number(argument: object) -> float | None:
    """A Python number that an operator needs as a constant; None if it is something else.

    Dynamo may have made a float of the user's code symbolic. Then a guard fixes its value, and
    another value compiles again. An exported program cannot compile again and keeps it symbolic.
    """
    if isinstance(argument, Node) and "example_value" not in argument.meta:
        return None
    value = value_of(argument) if isinstance(argument, Node) else argument
    if isinstance(value, bool) or not isinstance(value, (int, float, torch.SymFloat)):
        return None
    return float(value)

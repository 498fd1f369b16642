"""The residual addition in front of a norm."""

from __future__ import annotations

from torch.fx import Node

from fusewheel.compiler.ir.canonical import operands
from fusewheel.compiler.ir.metadata import dtype_of, same_sizes, shape_of
from fusewheel.compiler.ir.pattern import require


def addends(total: Node) -> tuple[Node, Node] | None:
    """The two tensors that are added to give a value; None if it is something else.

    Raises:
        Refuse: if one of them is broadcast or has another dtype, which the operators do not take.
    """
    x, residual = operands(total, "add") or (None, None)
    if not isinstance(x, Node) or not isinstance(residual, Node):
        return None
    shapes, dtypes = (shape_of(x), shape_of(residual)), (dtype_of(x), dtype_of(residual))
    if None in shapes:
        return None
    require(same_sizes(*shapes), f"a tensor of shape {shapes[1]} is added to one of {shapes[0]}")
    # Autocast adds bfloat16 to float32. Casting it first would move more memory than fusing saves.
    require(dtypes[0] == dtypes[1], f"{dtypes[1]} is added to {dtypes[0]}")
    return x, residual

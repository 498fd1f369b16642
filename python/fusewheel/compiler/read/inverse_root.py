"""``value / sqrt(statistic + eps)``, which is part of every norm."""

from __future__ import annotations

from dataclasses import dataclass

from torch.fx import Node

from fusewheel.compiler.ir.canonical import View, is_op, operands, split_operands, view
from fusewheel.compiler.ir.pattern import Refuse, require, sole_user
from fusewheel.compiler.read.precision import number


@dataclass(frozen=True)
class InverseRoot:
    """The inverse root of a statistic plus epsilon.

    Attributes:
        node: the ``rsqrt``, ``sqrt`` or ``pow``.
        total: its argument.
        statistic: its argument without epsilon.
        eps: epsilon.
    """

    node: Node
    total: Node
    statistic: View
    eps: float

    def scaled(self) -> tuple[Node, object, set[Node]]:
        """The value times the inverse root, the value, and the nodes between it and the statistic.

        Raises:
            Refuse: if the root is not used for exactly that.
        """
        interior = {self.statistic.node, self.total, self.node}
        factor = self.node
        if is_op(self.node, "sqrt"):
            factor = sole_user(self.node, "the root")
            quotient = operands(factor, "div")
            if quotient is not None and quotient[1] is self.node and isinstance(quotient[0], Node):
                return factor, quotient[0], interior
            inverse = operands(factor, "reciprocal") is not None or quotient == (1, self.node)
            require(inverse, "nothing is divided by the root")
            interior.add(factor)
        product = sole_user(factor, "the inverse root")
        return product, split_operands(product, "mul", factor), interior


def inverse_root(node: Node, *statistics: str) -> InverseRoot | None:
    """The inverse root at a ``rsqrt``, ``sqrt`` or ``pow``; None if it is not one of a statistic.

    Args:
        node: the anchor.
        *statistics: the canonical operations that its argument, without epsilon, may be.

    Raises:
        Refuse: if epsilon is not a number.
    """
    found = view(node)
    assert found is not None
    if found.op == "pow" and (isinstance(found.args[1], Node) or found.args[1] != -0.5):
        return None
    total = found.args[0]
    views = [view(addend) for addend in operands(total, "add") or ()]
    statistic = next((v for v in views if v is not None and v.op in statistics), None)
    if statistic is None:
        return None
    eps = number(split_operands(total, "add", statistic.node))
    if eps is None:
        raise Refuse("epsilon is not a Python number")
    return InverseRoot(node, total, statistic, eps)

"""Sinks: logits without a value, which a model puts beside the scores and drops after the softmax.

Xiao et al., "Efficient Streaming Language Models with Attention Sinks" (2023), as in gpt-oss.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

from torch.fx import Node

from fusewheel.compiler.ir.canonical import operands, rank_of, view
from fusewheel.compiler.ir.metadata import same_size, same_sizes, shape_of
from fusewheel.compiler.ir.pattern import Refuse


@dataclass(frozen=True)
class Sinks:
    """``cat((scores, sinks), -1)``, maybe minus the largest of each row.

    Attributes:
        scores: ``[..., queries, keys]``, without the sinks.
        column: what stands beside the scores, ``[..., queries, 1]``.
        interior: the nodes behind the scores and in front of the softmax.
    """

    scores: Node
    column: Node
    interior: frozenset[Node]

    def logits(self) -> Node:
        """The tensor with one number for each head, before it is expanded.

        Raises:
            Refuse: if there are other numbers for other queries or sequences.
        """
        node = self.column
        heads = (shape_of(self.scores) or ())[-3:-2]
        wanted = (1, *heads, 1, 1)
        while not same_sizes(shape_of(node), wanted) and (inner := operands(node, "expand")):
            node = inner[0]
        if not heads or not same_sizes((1, 1, 1, 1, *(shape_of(node) or ()))[-4:], wanted):
            raise Refuse("the scores are joined with something else than one number for each head")
        found = view(node)
        source = found.args[0] if found and found.op in ("reshape", "unsqueeze") else None
        if isinstance(source, Node) and same_sizes(shape_of(source), heads):
            node = source
        return node


def sinks_of(logits: Any) -> Sinks | None:
    """The sinks in the argument of a softmax; None if there are none."""
    interior = set[Node]()
    shifted = operands(logits, "sub")
    if shifted is not None:
        joined, peak = shifted
        steps = _steps(peak, joined)
        # A softmax does not change if the same number is taken from a whole row.
        if steps is None or not same_sizes((shape_of(peak) or ())[-1:], (1,)):
            return None
        interior |= {logits, *steps}
        logits = joined
    found = view(logits)
    if found is None or found.op != "cat" or len(found.args) != 2:
        return None
    scores, column = found.args
    last = found.attrs["dim"] == (rank_of(logits) or 0) - 1
    if not last or not same_sizes((shape_of(column) or ())[-1:], (1,)):
        return None
    return Sinks(scores, column, frozenset({*interior, found.node}))


def _steps(node: Any, source: Any) -> list[Node] | None:
    """The nodes that compute `node` from `source` alone; None if there is another way."""
    found: list[Node] = []
    while node is not source:
        if not isinstance(node, Node) or len(node.all_input_nodes) != 1:
            return None
        found.append(node)
        node = node.all_input_nodes[0]
    return found


def drops_last(node: Node) -> bool:
    """Whether a node is ``x[..., :-1]``."""
    found = view(node)
    if found is not None and found.op == "slice":
        sizes = shape_of(found.args[0]) or ()
        bounds = [found.attrs[name] for name in ("dim", "start", "step", "stop")]
        return bounds[:3] == [len(sizes) - 1, 0, 1] and same_size(bounds[3], sizes[-1] - 1)
    if node.target is not operator.getitem or not isinstance(node.args[1], tuple):
        return False
    *others, last = node.args[1]
    whole = all(item is Ellipsis or item == slice(None) for item in others)
    return whole and last == slice(None, -1) and len(others) > 0

"""SwiGLU: ``silu(gate) * up``."""

from __future__ import annotations

from torch.fx import Node

from fusewheel.compiler.ir.canonical import is_op, operands, split_operands, view
from fusewheel.compiler.ir.pattern import Context, Match, Pattern, PaysAbove, require
from fusewheel.compiler.read.gating import Gated, gated


def find_silu_mul(context: Context, node: Node) -> Gated | None:
    """The product around a silu; None if the node is not a silu.

    Raises:
        Refuse: if the silu is used for something that the operator does not compute.
    """
    found = view(node)
    if found is None:
        return None
    gate, interior = found.args[0], set()
    if found.op == "mul":  # x * sigmoid(x)
        pair = found.args
        sigmoid = next((arg for arg in pair if is_op(arg, "sigmoid")), None)
        gate = None if sigmoid is None else split_operands(node, "mul", sigmoid)
        if sigmoid is None or (operands(sigmoid, "sigmoid") or ()) != (gate,) or found.inplace:
            return None
        interior.add(sigmoid)
    elif found.inplace:
        # The write does not matter if nothing else uses that memory.
        alone = set(context.effects.sharing(gate)) <= {gate, node} and len(gate.users) == 1
        require(
            alone and gate.op in ("call_function", "call_method"),
            "silu writes in place to memory that is used elsewhere",
        )
    return gated("silu", node, gate, interior)


def _match(context: Context, node: Node) -> Match | None:
    found = find_silu_mul(context, node)
    return None if found is None else found.match(PATTERN)


PATTERN = Pattern(
    name="silu_mul",
    operator="fusewheel::silu_mul",
    anchors=frozenset({"silu", "mul"}),
    match=_match,
    pays_above=PaysAbove(inductor=4608, inductor_training=4608, none_training=4608),
)

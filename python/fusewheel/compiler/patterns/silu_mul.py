"""SwiGLU: ``silu(gate) * up``."""

from __future__ import annotations

from torch.fx import Node

from ..canonical import is_op, operands, split_operands, view
from ..gating import Gated, gated
from ..pattern import Context, Match, Pattern, require


def find_silu_mul(context: Context, node: Node) -> Gated | None:
    """The product around a silu, None if the node is no silu.

    Raises:
        Refuse: if the operator does not compute what the silu is used for.
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
        # The write is invisible where nothing else can see that memory.
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
)

"""SwiGLU: ``silu(gate) * up``."""

from __future__ import annotations

from torch.fx import Node

from ..canonical import is_op, operands, split_operands, view
from ..metadata import dtype_of, same_sizes, shape_of
from ..pattern import Builder, Context, Match, Pattern, require, sole_user
from ..precision import COMPUTED


def _match(context: Context, node: Node) -> Match | None:
    found = view(node)
    if found is None:
        return None
    gate, interior = found.args[0], {node}
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
    product = sole_user(node, "silu(gate)")
    found = view(product)
    require(found is not None and found.op == "mul", "silu is not multiplied by another tensor")
    assert found is not None
    require(not found.inplace, "the product is written in place")
    up = split_operands(product, "mul", node)
    if not isinstance(up, Node) or shape_of(up) is None:
        require(False, "silu is not multiplied by another tensor")
        return None
    require(same_sizes(shape_of(gate), shape_of(up)), "gate and up have different shapes")
    dtypes = dtype_of(gate), dtype_of(up)
    require(dtypes[0] == dtypes[1], f"gate is {dtypes[0]} and up is {dtypes[1]}")
    require(dtypes[0] in COMPUTED, f"{dtypes[0]} is not supported")

    def build(builder: Builder) -> list[Node]:
        return [builder.call(PATTERN.overload(), gate, up)]

    return Match((gate, up), (product,), frozenset(interior), build)


PATTERN = Pattern(
    name="silu_mul",
    operator="fusewheel::silu_mul",
    anchors=frozenset({"silu", "mul"}),
    match=_match,
)

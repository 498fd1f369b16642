"""Grouped-query attention in which the model repeats keys and values for each query head.

PyTorch's attention takes them without repetition. That saves a copy of the whole cache, in every
layer and for every token.
"""

from __future__ import annotations

from torch.fx import Node

from fusewheel.compiler.ir.canonical import view
from fusewheel.compiler.ir.metadata import requires_grad, same_sizes, shape_of, tensor_of
from fusewheel.compiler.ir.pattern import Builder, Context, Match, Pattern, Refuse, require
from fusewheel.compiler.read.attention import repeated


def _match(context: Context, node: Node) -> Match | None:
    found = view(node)
    if found is None or found.attrs["enable_gqa"]:
        return None
    query, key, value, mask = found.args
    keys, values = repeated(key), repeated(value)
    if keys is None and values is None:
        return None
    if keys is None or values is None:
        raise Refuse("keys and values are not repeated alike")
    heads = [(shape_of(tensor) or ())[:2] for tensor in (keys[0], values[0], query, key)]
    require(same_sizes(*heads[:2]), "keys and values are not repeated alike")
    require(same_sizes(*heads[2:]), "the query is broadcast over the heads")
    options = dict(found.attrs) | {"enable_gqa": True}
    dropout, causal = options.pop("dropout_p"), options.pop("is_causal")

    def build(builder: Builder) -> list[Node]:
        tensors = (query, keys[0], values[0], mask)
        return [builder.call(PATTERN.overload(), *tensors, dropout, causal, **options)]

    inputs = (query, keys[0], values[0], *(() if mask is None else (mask,)))
    absorbed = frozenset({*keys[1], *values[1]})
    # Autocast casts the operands in the same way, whether they are repeated or not.
    return Match(inputs, (node,), frozenset(), build, absorbed, widened=frozenset({node}))


def _cost(match: Match) -> str | None:
    tensor = tensor_of(match.inputs[0])
    if tensor is None or tensor.device.type != "cpu":
        return "it is only replaced on a CPU: elsewhere PyTorch's fastest attention may refuse it"
    if any(map(requires_grad, (*match.inputs, *match.roots))):
        return "PyTorch's grouped attention has no fast backward"
    return None


PATTERN = Pattern(
    name="grouped_attention",
    operator="aten::scaled_dot_product_attention",
    anchors=frozenset({"attention"}),
    match=_match,
    cost=_cost,
)

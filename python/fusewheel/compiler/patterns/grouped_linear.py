"""Products of rows that are sorted by group: `grouped_mm` of PyTorch and that of transformers."""

from __future__ import annotations

import torch
from torch.fx import Node

from fusewheel._core.after_import import after_import
from fusewheel.compiler.ir.canonical import operands, spell
from fusewheel.compiler.ir.metadata import dtype_of, shape_of, tensor_of
from fusewheel.compiler.ir.pattern import Builder, Context, Match, Pattern, require


def _spell_that_of_transformers() -> None:
    packet = getattr(torch.ops.transformers, "grouped_mm_fallback", None)
    if packet is not None:  # transformers 5
        spell("grouped_mm", "input mat2 offs", functions=(packet.default,))


after_import("transformers.integrations.moe", _spell_that_of_transformers)


def _match(context: Context, node: Node) -> Match | None:
    found = operands(node, "grouped_mm")
    if found is None:
        return None
    x, weight, ends = found
    require(isinstance(ends, Node), "its groups have no ends")
    sizes = [len(shape_of(tensor) or ()) for tensor in (x, weight)]
    require(sizes == [2, 3], f"its operands have {sizes} dimensions, not 2 and 3")
    dtypes = {dtype_of(tensor) for tensor in (x, weight, node)}
    require(len(dtypes) == 1, f"its operands and its result are {sorted(map(str, dtypes))}")

    def build(builder: Builder) -> list[Node]:
        turned = builder.call(torch.ops.aten.transpose.int, weight, 1, 2)
        return [builder.call(PATTERN.overload(), x, turned, ends, None)]

    return Match((x, weight, ends), (node,), frozenset(), build)


def _cost(match: Match) -> str | None:
    tensor = tensor_of(match.inputs[0])
    if tensor is None or tensor.device.type != "cpu":
        return "it is only faster than PyTorch's own on a CPU"
    return None


PATTERN = Pattern(
    name="grouped_linear",
    operator="fusewheel::grouped_linear",
    anchors=frozenset({"grouped_mm"}),
    match=_match,
    cost=_cost,
)

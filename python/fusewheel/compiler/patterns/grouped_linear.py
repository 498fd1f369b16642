"""Products of rows with the weights of their groups.

The rows are sorted by group in `grouped_mm` of PyTorch and that of transformers. They are in any
order in transformers' `batched_mm`, which copies a weight for each row.
"""

from __future__ import annotations

import math

import torch
from torch.fx import Node

from fusewheel._core.after_import import after_import
from fusewheel.compiler.ir.canonical import is_op, operands, spell, view
from fusewheel.compiler.ir.metadata import dtype_of, shape_of, tensor_of
from fusewheel.compiler.ir.pattern import Builder, Context, Match, Pattern, require

# With fewer elements in the weight of a group the time of a call counts most.
_SMALL_WEIGHT = 2**12


def _spell_that_of_transformers() -> None:
    packet = getattr(torch.ops.transformers, "grouped_mm_fallback", None)
    if packet is not None:  # transformers 5
        spell("grouped_mm", "input mat2 offs", functions=(packet.default,))


after_import("transformers.integrations.moe", _spell_that_of_transformers)


def _match(context: Context, node: Node) -> Match | None:
    found = operands(node, "grouped_mm")
    if found is None:
        return _match_batched(node)
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


def _match_batched(node: Node) -> Match | None:
    """`bmm(weight[numbers], x.unsqueeze(-1))`, or `bmm(x.unsqueeze(1), weight[numbers])`."""
    first, second = operands(node, "bmm") or (None, None)
    chosen, row, dim = (first, second, 2) if is_op(first, "take_rows") else (second, first, 1)
    taken, widened = operands(chosen, "take_rows"), view(row)
    if taken is None or widened is None or widened.op != "unsqueeze":
        return None
    (weight, numbers), x = taken, widened.args[0]
    require(widened.attrs["dim"] == dim, "its rows are no rows of one matrix")
    sizes = [len(shape_of(tensor) or ()) for tensor in (x, weight, numbers)]
    require(sizes == [2, 3, 1], f"its operands have {sizes} dimensions, not 2, 3 and 1")
    dtypes = {dtype_of(tensor) for tensor in (x, weight, node)}
    require(len(dtypes) == 1, f"its operands and its result are {sorted(map(str, dtypes))}")
    groups, *matrix = shape_of(weight) or ()
    known_sizes = all(isinstance(size, int) for size in (groups, *matrix))
    require(known_sizes, "the sizes of its weights are not known")
    small = "the weights are small: sorting takes longer than copying them"
    require(math.prod(matrix) >= _SMALL_WEIGHT, small)

    def build(builder: Builder) -> list[Node]:
        aten = torch.ops.aten
        numbered = builder.call(aten.arange.default, groups, dtype=torch.int64)
        # Refuses numbers that are none of a group; negative ones count from the last.
        known = builder.call(aten.take.default, numbered, numbers)
        ordered = builder.call(aten.sort.stable, known, stable=True, dim=0)
        found, order = (builder.item(ordered, i) for i in range(2))
        ends = builder.call(aten.searchsorted.Tensor, found, numbered, out_int32=True, right=True)
        rows = builder.call(aten.index_select.default, x, 0, order)
        turned = weight if dim == 2 else builder.call(aten.transpose.int, weight, 1, 2)
        y = builder.call(PATTERN.overload(), rows, turned, ends, None)
        places = builder.call(aten.argsort.default, order)
        back = builder.call(aten.index_select.default, y, 0, places)
        return [builder.call(aten.unsqueeze.default, back, dim)]

    return Match((x, weight, numbers), (node,), frozenset({chosen, row}), build)


def _cost(match: Match) -> str | None:
    tensor = tensor_of(match.inputs[0])
    if tensor is None or tensor.device.type != "cpu":
        return "it is only faster than PyTorch's own on a CPU"
    return None


PATTERN = Pattern(
    name="grouped_linear",
    operator="fusewheel::grouped_linear",
    anchors=frozenset({"grouped_mm", "bmm"}),
    match=_match,
    cost=_cost,
)

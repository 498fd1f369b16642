"""Converts a mask that several attention calls share once, and not in each call."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor
from torch.fx import Node

from fusewheel.compiler.ir.canonical import view
from fusewheel.compiler.ir.metadata import dtype_of, tensor_of
from fusewheel.compiler.ir.pattern import Builder, Context
from fusewheel.compiler.ir.purity import unwritten
from fusewheel.compiler.ir.queries import is_of_one_query


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A boolean mask in the form that attention adds to scores: 0 for True, -inf for False."""
    zero, minus_infinity = (torch.full((), v, dtype=dtype) for v in (0.0, -torch.inf))
    return torch.where(mask, zero, minus_infinity)


def convert_masks(context: Context) -> int:
    """Convert boolean masks in front of their first use; returns the number of saved calls."""
    shared: dict[Node, list[Node]] = defaultdict(list)
    for node in context.graph.nodes:
        found = view(node)
        # Attention of one query reads what a boolean mask shows.
        if found is not None and found.op == "attention" and not is_of_one_query(found):
            mask = found.args[3]
            if isinstance(mask, Node) and dtype_of(mask) == torch.bool:
                shared[mask].append(node)
    return sum(_convert(context, mask, calls) for mask, calls in shared.items())


def _convert(context: Context, mask: Node, calls: list[Node]) -> int:
    query, output = _query(calls[0]), tensor_of(calls[0])
    alike = all(
        context.modes[call] == context.modes[calls[0]] and dtype_of(_query(call)) == dtype_of(query)
        for call in calls
    )
    if (
        len(calls) < 2
        or not alike
        or output is None
        or output.device.type != "cpu"
        # Autocast converts to another dtype than that of the query.
        or dtype_of(query) != output.dtype
        or torch.is_autocast_enabled("cpu")
        or context.modes[calls[0]].autocast
        or not unwritten(context.effects, [mask], calls[0], calls[-1])
    ):
        return 0
    builder = Builder(context, calls[0], calls[0])
    converted = builder.call(additive, mask, output.dtype)
    context.add(converted, calls[0])
    for call in calls:
        call.replace_input_with(mask, converted)
    return len(calls) - 1


def _query(call: Node) -> Node:
    found = view(call)
    assert found is not None
    query: Node = found.args[0]
    return query

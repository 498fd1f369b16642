"""Leave out of a graph what need not run."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import torch
from torch.fx import Node

from ..canonical import view
from ..metadata import same_size, same_sizes, storage_of, tensor_of
from ..pattern import Context
from .purity import escapes, is_pure, key_of, memory_of, unwritten

# Operations whose result can be their operand, in every respect.
_PASSING = frozenset({"cast", "contiguous", "expand", "permute", "reshape", "slice"})


def drop_dead(context: Context, keep: Container[Node] = ()) -> int:
    """Erase pure nodes whose value nothing uses, but for those in `keep`; gives their number."""
    count = 0
    for node in reversed(context.graph.nodes):
        if not node.users and node not in keep and _is_call(node) and is_pure(node):
            context.erase(node)
            count += 1
    return count


def share(context: Context) -> int:
    """Compute once what is computed several times: masks, positions, cosines and sines.

    Only values without a gradient: the sum of the others' gradients would be rounded otherwise.
    """
    count, seen = 0, dict[Any, Node]()
    results = returned(context)
    for node in list(context.graph.nodes):
        tensor = tensor_of(node)
        if tensor is None or tensor.requires_grad or not _is_call(node) or not is_pure(node):
            continue
        try:
            key = (node.target, key_of(node.args), key_of(node.kwargs), context.modes[node])
            first = seen.setdefault(key, node)
        except TypeError:
            continue
        if first is node:
            continue
        if _interchangeable(context, first, node, results):
            node.replace_all_uses_with(first)
            context.erase(node)
            count += 1
        else:
            seen[key] = node
    return count


def _interchangeable(context: Context, first: Node, again: Node, results: set[int | None]) -> bool:
    """Whether the earlier of two equal computations can stand for the later one as well."""
    effects = context.effects
    return (
        not escapes(first, results)
        and not escapes(again, results)
        and unwritten(effects, first.all_input_nodes, first, again)
        and unwritten(effects, (first, again), first, None)
    )


def skip_copies(context: Context) -> int:
    """Leave out conversions that give back their operand: its memory, its shape, its strides."""
    count = 0
    results = returned(context)
    for node in list(context.graph.nodes):
        found = view(node)
        if found is None or found.inplace or found.op not in _PASSING:
            continue
        source = found.args[0]
        if not isinstance(source, Node) or not _is_same(tensor_of(source), tensor_of(node)):
            continue
        # Its operand itself or a view of that: only who writes to it can tell.
        if escapes(node, results) or not unwritten(context.effects, [node], node, None):
            continue
        node.replace_all_uses_with(source)
        context.erase(node)
        count += 1
    return count


def returned(context: Context) -> set[int | None]:
    """The memory that the graph's results lie in."""
    return memory_of(context.graph.output_node().all_input_nodes)


def _is_same(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    return (
        a is not None
        and b is not None
        and storage_of(a) is not None
        and storage_of(a) == storage_of(b)
        and a.dtype == b.dtype
        and a.requires_grad == b.requires_grad
        and same_sizes(a.shape, b.shape)
        and same_sizes(a.stride(), b.stride())
        and same_size(a.storage_offset(), b.storage_offset())
    )


def _is_call(node: Node) -> bool:
    return node.op in ("call_function", "call_method")

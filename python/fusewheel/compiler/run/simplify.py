"""Removes from a graph what need not run."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import torch
from torch.fx import Node

from fusewheel.compiler.ir.canonical import view
from fusewheel.compiler.ir.metadata import same_size, same_sizes, storage_of, tensor_of
from fusewheel.compiler.ir.pattern import Context
from fusewheel.compiler.ir.purity import escapes, is_pure, key_of, memory_of, unwritten

# Operations whose result may be the same as their operand.
_PASSING = frozenset({"cast", "contiguous", "dropout", "expand", "permute", "reshape", "slice"})


def drop_dead(context: Context, keep: Container[Node] = ()) -> int:
    """Erase pure nodes whose value nothing uses, except those in `keep`; returns their number."""
    count = 0
    for node in reversed(context.graph.nodes):
        if not node.users and node not in keep and _is_call(node) and is_pure(node):
            context.erase(node)
            count += 1
    return count


def share(context: Context) -> int:
    """Compute once what is computed several times: masks, positions, cosines and sines.

    Only values without a gradient are shared. Sharing others would sum their gradients in another
    order, with other roundings.
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
    """Whether the result of the earlier of two equal computations can replace the later one."""
    effects = context.effects
    return (
        not escapes(first, results)
        and not escapes(again, results)
        and unwritten(effects, first.all_input_nodes, first, again)
        and unwritten(effects, (first, again), first, None)
    )


def skip_copies(context: Context) -> int:
    """Remove conversions whose result has the memory, shape and strides of their operand."""
    count = 0
    results = returned(context)
    for node in list(context.graph.nodes):
        found = view(node)
        if found is None or found.inplace or found.op not in _PASSING:
            continue
        source = found.args[0]
        if not isinstance(source, Node):
            continue
        # Dropout that does nothing returns its operand, though example values may not show it.
        if found.op != "dropout":
            if not _is_same(tensor_of(source), tensor_of(node)):
                continue
            # The operand may replace it only if nothing writes to that memory.
            if escapes(node, results) or not unwritten(context.effects, [node], node, None):
                continue
        node.replace_all_uses_with(source)
        context.erase(node)
        count += 1
    return count


def returned(context: Context) -> set[int | None]:
    """The memory of the graph's results."""
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

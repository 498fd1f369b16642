"""Attention of one query to the keys of a cache, by the kernel of `fusewheel.attention_decode`."""

from __future__ import annotations

import torch
from torch.fx import Node

from fusewheel.compiler.ir.canonical import View, view
from fusewheel.compiler.ir.metadata import requires_grad, tensor_of
from fusewheel.compiler.ir.pattern import Context
from fusewheel.compiler.ir.queries import is_of_one_query
from fusewheel.engine.attention import attend, can_attend


def decode(context: Context) -> int:
    """Let calls of PyTorch's attention with one query become `attend`.

    Returns:
        the number of calls.
    """
    count = 0
    for node in context.graph.nodes:
        found = view(node)
        if found is None or found.op != "attention" or not _can_replace(context, node, found):
            continue
        node.op, node.target = "call_function", attend
        node.args, node.kwargs = (*found.args, found.attrs["scale"]), {}
        count += 1
    return count


def _can_replace(context: Context, node: Node, found: View) -> bool:
    modes = context.modes[node]
    if not is_of_one_query(found) or requires_grad(node) or modes.autocast or modes.functorch:
        return False
    if torch.is_autocast_enabled("cpu") or not can_attend():
        return False
    tensors = [tensor_of(argument) for argument in (*found.args[:3], node)]
    if any(t is None or t.device.type != "cpu" for t in tensors):
        return False
    return len({t.dtype for t in tensors if t is not None}) == 1

"""Computes at compile time what does not depend on an input."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.fx import Node
from torch.fx.node import map_arg

from fusewheel._torch.dispatcher import modes_off
from fusewheel.compiler.ir.metadata import CONSTANT, tensor_of
from fusewheel.compiler.ir.pattern import Context
from fusewheel.compiler.ir.purity import escapes, is_pure, unwritten
from fusewheel.compiler.run.simplify import returned

# Larger values would stay in memory between calls, and save less time than a call takes.
_LARGEST = 2**16


def fold(context: Context) -> dict[Node, Tensor]:
    """The values of nodes that are the same in every call, if other nodes use them."""
    constants: dict[Node, Tensor] = {}
    results = returned(context)
    for node in context.graph.nodes:
        if _is_constant(context, node, constants, results):
            value = _compute(node, constants)
            if value is not None:
                constants[node] = value
    used = [node for node in constants if any(user not in constants for user in node.users)]
    for node in used:
        node.args, node.kwargs = (), {}  # what it was computed from may be dead now
        node.meta[CONSTANT] = constants[node]
    return {node: constants[node] for node in used}


def _is_constant(
    context: Context, node: Node, constants: dict[Node, Tensor], results: set[int | None]
) -> bool:
    tensor, modes = tensor_of(node), context.modes[node]
    if tensor is None or node.op not in ("call_function", "call_method"):
        return False
    return (
        all(source in constants for source in node.all_input_nodes)
        and is_pure(node)
        and tensor.device.type == "cpu"
        and not tensor.requires_grad
        and all(isinstance(size, int) for size in tensor.shape)
        and tensor.numel() * tensor.element_size() <= _LARGEST
        and not modes.inference
        and not modes.autocast
        and not modes.functorch
        and not escapes(node, results)
        and unwritten(context.effects, [node], node, None)
    )


def _compute(node: Node, constants: dict[Node, Tensor]) -> Tensor | None:
    args = map_arg(node.args, constants.__getitem__)
    kwargs = map_arg(node.kwargs, constants.__getitem__)
    expected = tensor_of(node)
    assert expected is not None
    # A tensor made in inference mode could not be used in training later.
    with modes_off(), torch.inference_mode(False), torch.no_grad():
        if node.op == "call_method":
            value = getattr(args[0], str(node.target))(*args[1:], **kwargs)
        else:
            assert callable(node.target)
            value = node.target(*args, **kwargs)
    same = (
        isinstance(value, Tensor)
        and value.dtype == expected.dtype
        and value.shape == expected.shape
        and value.device == expected.device
    )
    return value if same else None

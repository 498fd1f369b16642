"""Whether autograd would record anything while a graph runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from fusewheel._torch.builtins import tree_leaves
from fusewheel.compiler.ir.effects import Effects
from fusewheel.compiler.ir.metadata import storage_of, value_of

_CALLS = frozenset({"call_function", "call_method", "call_module"})


def records_gradients(gm: GraphModule, example_inputs: Sequence[Any] = ()) -> bool:
    """Whether autograd would record a call of a graph, or of a body that it calls.

    It does if a value that the graph computes requires a gradient, or if the graph writes to memory
    of which a tensor requires one: an assignment (``x[0] = 0``) or an operator without a result
    leaves no value that would tell. The answer is yes wherever the graph does not tell.

    Args:
        gm: a graph from Dynamo, which guards on all that the answer depends on.
        example_inputs: its inputs as they are before the graph writes to any of them.
    """
    graphs = [body.graph for body in gm.modules() if isinstance(body, GraphModule)]
    return any(_records(graph, example_inputs if graph is gm.graph else ()) for graph in graphs)


def _records(graph: Graph, example_inputs: Iterable[Any]) -> bool:
    inputs = (node for node in graph.nodes if node.op == "placeholder")
    # The values noted in the graph are those after all writes: `detach_` takes the gradient away.
    pairs = zip(inputs, example_inputs, strict=False)
    trained = {node for node, value in pairs if _requires_grad(value)}
    for node in graph.nodes:
        if node.op != "output" and (_requires_grad(_value(node)) or _is_unknown(node, trained)):
            if node.op in _CALLS and not _is_unrecorded_view(node, trained):
                return True
            trained.add(node)
    return bool(trained) and Effects(graph).may_write_to(trained)


def _is_unrecorded_view(node: Node, trained: set[Node]) -> bool:
    """Whether a call only views something trained, or returns it, and autograd records nothing.

    Without grad mode a view of a parameter still requires a gradient, and so does
    ``weight.float()`` of a float32 weight, which is the weight.
    """
    value = value_of(node)
    if not isinstance(value, torch.Tensor) or not _is_leaf(value):
        return False
    if any(user.op == "output" for user in node.users):
        return False  # below autograd a view would not require a gradient
    memory = storage_of(value)
    sources = [value_of(source) for source in node.all_input_nodes if source in trained]
    tensors = [source for source in sources if isinstance(source, torch.Tensor)]
    return memory is not None and any(storage_of(tensor) == memory for tensor in tensors)


def _is_leaf(tensor: torch.Tensor) -> bool:
    try:
        return tensor.is_leaf
    except RuntimeError:  # of a view whose memory the graph has written to
        return False


def _requires_grad(value: object) -> bool:
    if isinstance(value, torch.Tensor):
        return value.requires_grad
    return any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in tree_leaves(value))


def _value(node: Node) -> object:
    """The value of a node; that of an attribute is looked up where Dynamo noted none."""
    value, module = value_of(node), node.graph.owning_module
    if value is not None or node.op != "get_attr" or module is None:
        return value
    for name in str(node.target).split("."):
        value = getattr(module if value is None else value, name, None)
    return value


def _is_unknown(node: Node, trained: set[Node]) -> bool:
    """Whether a call may have a gradient that its metadata lacks, as that of ATen always does."""
    untold = node.op in _CALLS and "example_value" not in node.meta
    return untold and not trained.isdisjoint(node.all_input_nodes)

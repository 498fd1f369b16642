"""PyTorch's own passes, which simplify a graph before patterns are matched."""

from __future__ import annotations

from typing import Any

import torch

from fusewheel._torch import jit

Graph = jit.Graph
TorchScript = torch.jit.ScriptModule


def frozen(module: TorchScript) -> TorchScript:
    """A copy of a module with one simplified graph, in which weights are constants.

    Args:
        module: the module, in evaluation mode.
    """
    if module._c.hasattr("training"):
        result: TorchScript = torch.jit.freeze(module)
    else:  # frozen before, which `torch.jit.freeze` does not take
        result = jit.freeze_again(module)
    simplify(graph_of(result))
    return result


def held(module: jit.ScriptModule) -> TorchScript:
    """The module in a form that can be a submodule, which results of `torch.jit.freeze` cannot."""
    result: TorchScript = jit.wrapped(module)
    return result


def graph_of(module: TorchScript) -> Graph:
    """The graph of ``forward``; changing it changes the module."""
    graph: Graph = jit.forward_of(module).graph
    return graph


def simplify(graph: Graph) -> None:
    """Inline calls, fold constants, and replace writes in place where that is safe."""
    _unpack_tuples(graph)
    jit.simplify(graph)
    _hoist_constants(graph)


def _unpack_tuples(graph: Graph) -> None:
    """Read the elements of a tuple and not the tuple, as freezing does."""
    for unpack in graph.findAllNodes("prim::TupleUnpack"):  # type: ignore[attr-defined]
        whole = unpack.inputsAt(0).node()
        if whole.kind() == "prim::TupleConstruct":
            for value, item in zip(unpack.outputs(), whole.inputs(), strict=True):
                value.replaceAllUsesWith(item)


def _hoist_constants(graph: Graph) -> None:
    """Move constants to the front, because a replacement may read one earlier."""
    nodes = list(graph.nodes())
    for node in nodes:
        if node.kind() == "prim::Constant" and node is not nodes[0]:
            node.moveBefore(nodes[0])


CONTAINERS = ("prim::ListConstruct", "prim::TupleConstruct")


def sink_containers(graph: Graph) -> None:
    """Move each list and tuple in front of the node that uses it.

    A replacement may compute a value later than before. A list that contains the value must be made
    after that.
    """
    nodes = list(graph.nodes())
    for node in reversed(nodes):
        if node.kind() not in CONTAINERS:
            continue
        users = [use.user for use in node.output().uses()]
        own = [user for user in users if is_top_level(user)]
        if not own or len(own) != len(users):
            continue
        first = own[0]
        for user in own[1:]:
            first = user if user.isBefore(first) else first
        if first.kind() != "prim::Return":
            node.moveBefore(first)


def is_top_level(node: Any) -> bool:
    """Whether a node is outside of all branches and loops."""
    return node.owningBlock().owningNode() is None

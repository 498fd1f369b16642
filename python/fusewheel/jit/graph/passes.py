"""PyTorch's own passes: what they simplify before anything is matched."""

from __future__ import annotations

from typing import Any

import torch

Graph = torch._C.Graph
TorchScript = torch.jit.ScriptModule


def frozen(module: TorchScript) -> TorchScript:
    """A copy of a module whose weights and submodules are constants of one simplified graph.

    Args:
        module: in evaluation mode.
    """
    if module._c.hasattr("training"):
        result: TorchScript = torch.jit.freeze(module)
    else:  # frozen before, which `torch.jit.freeze` does not take
        result = held(torch._C._freeze_module(module._c))
    simplify(graph_of(result))
    return result


def held(module: torch._C.ScriptModule) -> TorchScript:
    """A module that others can hold, which those of `torch.jit.freeze` are not."""
    result: TorchScript = torch.jit._recursive.wrap_cpp_module(module)
    return result


def graph_of(module: TorchScript) -> Graph:
    """The graph behind ``forward``; changes to it are changes of the module."""
    graph: Graph = module._c._get_method("forward").graph
    return graph


def simplify(graph: Graph) -> None:
    """Inline, fold constants, and turn writes in place into their pure forms where that is safe."""
    torch._C._jit_pass_inline(graph)
    torch._C._jit_pass_constant_propagation(graph)
    torch._C._jit_pass_remove_mutation(graph)
    torch._C._jit_pass_peephole(graph)
    torch._C._jit_pass_cse(graph)
    torch._C._jit_pass_constant_pooling(graph)  # type: ignore[attr-defined]
    torch._C._jit_pass_dce(graph)


CONTAINERS = ("prim::ListConstruct", "prim::TupleConstruct")


def sink_containers(graph: Graph) -> None:
    """Move each list and tuple to the node that uses it.

    A replaced value may be computed later than before, though before whatever reads it; a list
    that was made ahead of its use would stand in between.
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
    """Whether a node lies in no branch or loop."""
    return node.owningBlock().owningNode() is None

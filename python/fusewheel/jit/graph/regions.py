"""Parts of a graph behind single nodes, each run by PyTorch's static runtime.

`prim::StaticSubgraph` is an operator of PyTorch's that carries a graph as its attribute. When it is
first called that becomes a StaticModule, which plans the memory of the values in between, follows
other sizes, and runs below autograd. It saves without its graph, so that the file does not load,
and threads that call it at once end the process: a graph with such nodes stays where it was made
and behind a lock, which is what `StaticModel` is for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from .support import TorchScriptError

Graph = torch._C.Graph
Node = torch._C.Node

# What is no operation on tensors and still has its place among them.
_PLAIN = frozenset(
    {
        *("prim::ListConstruct", "prim::TupleConstruct", "prim::DictConstruct"),
        *("prim::ListUnpack", "prim::TupleUnpack", "prim::TupleIndex", "prim::NumToTensor"),
        *("prim::dtype", "prim::device", "prim::min", "prim::max"),
    }
)
# They need the module, of which a part knows nothing.
_STATE = ("prim::GetAttr", "prim::SetAttr", "prim::CallMethod")
# Measured on operations of 64 elements: a node takes as long as it saves on about six of PyTorch's.
# One of ours is enough, for the kernel on the `Autograd` key is not called.
_FEWEST = 6


def with_regions(source: Graph) -> Graph:
    """A copy of a frozen module's graph, without the module, with its straight parts behind nodes.

    Branches and loops, calls of Python and what else PyTorch's static runtime cannot run stay
    outside; straight parts inside of branches and loops are moved as well.

    Args:
        source: its first input is the module.

    Raises:
        TorchScriptError: there is nothing to move, or it would not be safe; the message ends a
            sentence.
    """
    graph = without_module(source)
    _check_writes(graph)
    regions = [part for part in _parts(graph.block()) if _is_worth_it(part)]
    if not regions:
        raise TorchScriptError("finds no straight part of the graph that would gain")
    for region in regions:
        _move(graph, region)
    graph.lint()
    return graph


def without_module(source: Graph) -> Graph:
    """A copy of a frozen module's graph with the inputs of ``forward`` alone.

    Raises:
        TorchScriptError: it uses the module; the message ends a sentence.
    """
    graph = source.copy()
    for kind in _STATE:
        if graph.findAllNodes(kind):  # type: ignore[attr-defined]
            raise TorchScriptError(f"runs no module with state, and this one has {kind}")
    graph.eraseInput(0)
    return graph


def _check_writes(graph: Graph) -> None:
    # The static runtime turns views into copies where nothing in its own part writes to them.
    outside = [n.kind() for n in _nodes(graph.block()) if not _fits(n)]
    writes = [n.kind() for n in _nodes(graph.block()) if "!" in n.schema()]
    if outside and writes:
        raise TorchScriptError(
            f"moves no part of a graph that writes in place beside other nodes, and this one has "
            f"{writes[0]} and {outside[0]}"
        )


def _nodes(block: Any) -> Iterator[Node]:
    for node in block.nodes():
        if node.kind() != "prim::Constant":
            yield node
        for inner in node.blocks():
            yield from _nodes(inner)


def _fits(node: Node) -> bool:
    if node.outputsSize() == 0 or any(True for _ in node.blocks()):
        return False
    kind = node.kind()
    return kind in _PLAIN or (not kind.startswith("prim::") and node.schema() != "(no schema)")


def _parts(block: Any) -> Iterator[list[Node]]:
    """The longest rows of nodes that fit, constants left out."""
    part: list[Node] = []
    for node in block.nodes():
        if node.kind() == "prim::Constant":
            continue
        if _fits(node):
            part.append(node)
            continue
        yield part
        part = []
        for inner in node.blocks():
            yield from _parts(inner)
    yield part


def _is_worth_it(part: list[Node]) -> bool:
    if any(node.kind().startswith("fusewheel::") for node in part):
        return True
    return sum(any(map(_is_tensor, node.outputs())) for node in part) >= _FEWEST


def _is_tensor(value: torch._C.Value) -> bool:
    return value.type().isSubtypeOf(torch._C.TensorType.get())


def _move(graph: Graph, region: list[Node]) -> None:
    inside = {value.unique() for node in region for value in node.outputs()}
    outputs = [v for node in region for v in node.outputs() if _is_used_outside(v, inside)]
    part, inputs = _copied(region, outputs)
    try:
        torch._C._jit_to_static_module(part)  # tells now what it cannot run
    except RuntimeError as error:
        raise TorchScriptError(f"cannot run a part of the graph: {error}") from error
    node = graph.create("prim::StaticSubgraph", inputs, len(outputs))
    node.g_("Subgraph", part)
    node.insertBefore(region[0])
    for old, new in zip(outputs, node.outputs(), strict=True):
        new.setType(old.type())
        old.replaceAllUsesWith(new)
    for dead in reversed(region):
        dead.destroy()


def _is_used_outside(value: torch._C.Value, inside: set[int]) -> bool:
    users = (use.user for use in value.uses())
    return any(
        not user.outputsSize() or next(user.outputs()).unique() not in inside for user in users
    )


def _copied(
    region: list[Node], outputs: list[torch._C.Value]
) -> tuple[Graph, list[torch._C.Value]]:
    """The nodes as a graph of their own, and what its inputs stand for."""
    graph = Graph()
    copies: dict[int, torch._C.Value] = {}
    inputs: list[torch._C.Value] = []

    def clone_of(node: Node) -> Node:
        return graph.insertNode(graph.createClone(node, copy_of))  # type: ignore[attr-defined]

    def copy_of(value: torch._C.Value) -> torch._C.Value:
        if value.unique() not in copies:
            origin = value.node()
            if origin.kind() == "prim::Constant":
                copies[value.unique()] = clone_of(origin).output()
            else:
                inputs.append(value)
                copy = graph.addInput()
                copy.setType(value.type())
                copies[value.unique()] = copy
        return copies[value.unique()]

    for node in region:
        for value in node.inputs():
            copy_of(value)
        clone = clone_of(node)
        copies |= {
            old.unique(): new for old, new in zip(node.outputs(), clone.outputs(), strict=True)
        }
    for value in outputs:
        graph.registerOutput(copies[value.unique()])
    return graph, inputs

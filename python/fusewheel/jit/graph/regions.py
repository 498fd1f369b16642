"""Moves parts of a graph into single nodes, which PyTorch's static runtime runs.

`prim::StaticSubgraph` is an operator of PyTorch that has a graph as its attribute. At its first
call the graph becomes a StaticModule, which plans the memory of intermediate values, accepts other
sizes, and runs below autograd. It saves without its graph, so the file does not load, and two
threads that call it at once end the process. So `StaticModel` keeps a graph with such nodes in
memory and behind a lock.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fusewheel._torch import jit
from fusewheel.jit.support import TorchScriptError

Graph = jit.Graph
Node = jit.Node

# Nodes that are not operations on tensors and may be in such a part.
_PLAIN = frozenset(
    {
        *("prim::ListConstruct", "prim::TupleConstruct", "prim::DictConstruct"),
        *("prim::ListUnpack", "prim::TupleUnpack", "prim::TupleIndex", "prim::NumToTensor"),
        *("prim::dtype", "prim::device", "prim::min", "prim::max"),
    }
)
# They need the module, which such a part does not have.
_STATE = ("prim::GetAttr", "prim::SetAttr", "prim::CallMethod")
# Measured with operations on 64 elements: a node costs as much time as it saves on about six of
# PyTorch's operations. One fused operator is enough, because its Python kernel for autograd is not
# called.
_FEWEST = 6


def with_regions(source: Graph) -> Graph:
    """A copy of a frozen module's graph, without the module, with its parts without control flow
    moved into nodes.

    Branches, loops, calls of Python and everything else that PyTorch's static runtime cannot run
    stay outside. Parts inside of branches and loops are moved too.

    Args:
        source: the graph; its first input is the module.

    Raises:
        TorchScriptError: there is nothing to move, or moving is not safe. The message continues
            the sentence "runtime='static' ...".
    """
    graph = without_module(source)
    _check_writes(graph)
    regions = [part for part in _parts(graph.block()) if _is_worth_it(part)]
    if not regions:
        raise TorchScriptError("finds no part of the graph that would become faster")
    for region in regions:
        _move(graph, region)
    graph.lint()
    return graph


def without_module(source: Graph) -> Graph:
    """A copy of a frozen module's graph whose inputs are those of ``forward``.

    Raises:
        TorchScriptError: the graph uses the module. The message continues a sentence.
    """
    graph = source.copy()
    for kind in _STATE:
        if graph.findAllNodes(kind):  # type: ignore[attr-defined]
            raise TorchScriptError(f"runs no module with state, and this one has {kind}")
    graph.eraseInput(0)
    return graph


def _check_writes(graph: Graph) -> None:
    # The static runtime turns views into copies if nothing in the same part writes to them.
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
    """The longest sequences of nodes that fit; constants are left out."""
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


def _is_tensor(value: jit.Value) -> bool:
    return value.type().isSubtypeOf(jit.TensorType.get())


def _move(graph: Graph, region: list[Node]) -> None:
    inside = {value.unique() for node in region for value in node.outputs()}
    outputs = [v for node in region for v in node.outputs() if _is_used_outside(v, inside)]
    part, inputs = _copied(region, outputs)
    try:
        jit.static_module(part)  # raises an error now if it cannot run the part
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


def _is_used_outside(value: jit.Value, inside: set[int]) -> bool:
    users = (use.user for use in value.uses())
    return any(
        not user.outputsSize() or next(user.outputs()).unique() not in inside for user in users
    )


def _copied(region: list[Node], outputs: list[jit.Value]) -> tuple[Graph, list[jit.Value]]:
    """A graph of the nodes, and the values that its inputs stand for."""
    graph = Graph()
    copies: dict[int, jit.Value] = {}
    inputs: list[jit.Value] = []

    def clone_of(node: Node) -> Node:
        return graph.insertNode(graph.createClone(node, copy_of))  # type: ignore[attr-defined]

    def copy_of(value: jit.Value) -> jit.Value:
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

"""Carry what was rewritten in a mirror over to the TorchScript graph."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import Node

from .mirror import Mirror
from .passes import CONTAINERS

Reads = dict[Node, tuple[Node, ...]]


def reads(mirror: Mirror) -> Reads:
    """What each node of a mirror reads, to be compared after the rewrite."""
    return {node: tuple(_nodes_in(node)) for _, node in mirror.pairs}


def replay(mirror: Mirror, before: Reads) -> None:
    """Change the TorchScript graph as its mirror was changed.

    Args:
        mirror: rewritten by `fusewheel.compiler.rewrite`.
        before: what its nodes read before that.

    Raises:
        LookupError: if a node was emitted that TorchScript has no operator for.
    """
    _Replay(mirror).run(before)


def _nodes_in(node: Node) -> Iterator[Node]:
    """The nodes among the arguments, each as often as it is one."""
    todo: list[Any] = [node.kwargs, node.args]
    while todo:
        item = todo.pop()
        if isinstance(item, Node):
            yield item
        elif isinstance(item, (list, tuple)):
            todo += reversed(item)
        elif isinstance(item, dict):
            todo += reversed(item.values())


class _Replay:
    def __init__(self, mirror: Mirror) -> None:
        self._mirror = mirror
        self._graph = mirror.source
        self._place = {node: origin for origin, node in reversed(mirror.pairs)}
        self._values: dict[Node, torch._C.Value] = dict(mirror.values)
        self._results: dict[Node, torch._C.Node] = {}

    def run(self, before: Reads) -> None:
        for node in self._mirror.module.graph.nodes:
            if node.op == "call_function" and node not in self._place:
                # The graph keeps its point of insertion: it must not be a node that is destroyed.
                with self._graph.insert_point_guard(self._follower(node)):
                    self._emit(node)
        for old, new in self._exchanged(before).items():
            self._mirror.values[old].replaceAllUsesWith(self._values[new])
        self._destroy()

    def _exchanged(self, before: Reads) -> dict[Node, Node]:
        found: dict[Node, Node] = {}
        for node, old in before.items():
            if not node._erased:
                pairs = zip(old, _nodes_in(node), strict=True)
                found.update((a, b) for a, b in pairs if a is not b)
        return found

    def _follower(self, node: Node) -> torch._C.Node:
        while node not in self._place:
            node = node.next
        place = self._place[node]
        # The lists that the node reads stand right before it, see `sink_containers`.
        while place.prev().kind() in CONTAINERS:
            place = place.prev()
        return place

    def _emit(self, node: Node) -> None:
        if node.target is operator.getitem:
            source, index = node.args[0], node.args[1]
            made = self._results.get(source)  # type: ignore[arg-type]
            if made is None:  # an operation of the model that has several results
                raise LookupError(f"{node.name} selects from what is no new operator")
            self._values[node] = made.outputsAt(index)  # type: ignore[arg-type]
            return
        overload = _overload(node.target)
        inputs = self._inputs(node, overload)
        name = overload._schema.name
        made = self._graph.create(name, inputs, len(overload._schema.returns))
        self._graph.insertNode(made)
        self._results[node] = made
        if made.outputsSize() == 1:
            self._values[node] = made.output()
        if not made.schema().startswith(f"{name}{_dot(overload)}("):
            raise LookupError(f"TorchScript takes {overload} for {made.schema()}")

    def _inputs(self, node: Node, overload: torch._ops.OpOverload) -> list[torch._C.Value]:
        """The arguments in the order of the schema, every default written out."""
        given = list(node.args)
        found = []
        for position, argument in enumerate(overload._schema.arguments):
            if position < len(given):
                value = given[position]
            else:
                default = argument.default_value if argument.has_default_value() else None
                value = node.kwargs.get(argument.name, default)
            found.append(self._value(value))
        return found

    def _value(self, argument: Any) -> torch._C.Value:
        if isinstance(argument, Node):
            return self._values[argument]
        return self._graph.insertConstant(argument)  # type: ignore[attr-defined]

    def _destroy(self) -> None:
        """Destroy what was taken over, last first, and the lists that nothing reads any more."""
        counterparts: dict[str, list[Node]] = {}
        for origin, node in self._mirror.pairs:
            counterparts.setdefault(_key(origin), []).append(node)
        for origin in reversed(list(self._graph.nodes())):
            if origin.kind() in CONTAINERS:
                dead = not origin.hasUses()
            else:
                nodes = counterparts.get(_key(origin), [])
                dead = bool(nodes) and all(node._erased for node in nodes)
            if dead:
                origin.destroy()


def _key(node: torch._C.Node) -> str:
    # Two Python objects for one node are not equal; its results have numbers.
    return ",".join(str(value.unique()) for value in node.outputs())


def _dot(overload: torch._ops.OpOverload) -> str:
    name = overload._schema.overload_name
    return f".{name}" if name else ""


def _overload(target: Any) -> torch._ops.OpOverload:
    if isinstance(target, torch._ops.OpOverload):
        return target
    name = torch.jit._builtins._find_builtin(target)
    if name is None:
        raise LookupError(f"{target} is no operator of TorchScript")
    namespace, _, stem = name.partition("::")
    result: torch._ops.OpOverload = getattr(getattr(torch.ops, namespace), stem).default
    return result

"""Makes the changes of a rewritten mirror in the TorchScript graph."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import Node

from fusewheel._torch import jit
from fusewheel._torch.fx import is_erased
from fusewheel._torch.overloads import OpOverload
from fusewheel.compiler.ir.metadata import value_of
from fusewheel.jit.graph.mirror import Mirror
from fusewheel.jit.graph.passes import CONTAINERS

Reads = dict[Node, tuple[Node, ...]]


def reads(mirror: Mirror) -> Reads:
    """What each node of a mirror reads, for comparison after the rewrite."""
    return {node: tuple(_nodes_in(node)) for _, node in mirror.pairs}


def replay(mirror: Mirror, before: Reads) -> None:
    """Change the TorchScript graph as its mirror was changed.

    Args:
        mirror: the mirror, rewritten by `fusewheel.compiler.rewrite`.
        before: what its nodes read before the rewrite.

    Raises:
        LookupError: if TorchScript has no operator for an emitted node.
    """
    _Replay(mirror).run(before)


def _nodes_in(node: Node) -> Iterator[Node]:
    """The nodes among the arguments, repeated if they occur several times."""
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
        self._values: dict[Node, jit.Value] = dict(mirror.values)
        self._results: dict[Node, jit.Node] = {}
        self._moved = set(self._find_moved())

    def _find_moved(self) -> Iterator[Node]:
        """The nodes that stood in front of one that they follow now."""
        numbers = {node: number for number, (_, node) in enumerate(self._mirror.pairs)}
        latest = -1
        for node in self._mirror.module.graph.nodes:
            if node in numbers and numbers[node] < latest:
                yield node
            latest = max(latest, numbers.get(node, -1))

    def run(self, before: Reads) -> None:
        for node in self._mirror.module.graph.nodes:
            if node in self._moved:
                self._move(node)
            elif node.op in ("call_function", "get_attr") and node not in self._place:
                # The graph's insertion point must not be a node that is destroyed.
                with self._graph.insert_point_guard(self._follower(node)):
                    self._emit(node)
        for old, new in self._exchanged(before).items():
            self._mirror.values[old].replaceAllUsesWith(self._values[new])
        self._destroy()

    def _exchanged(self, before: Reads) -> dict[Node, Node]:
        found: dict[Node, Node] = {}
        for node, old in before.items():
            if not is_erased(node):
                pairs = zip(old, _nodes_in(node), strict=True)
                found.update((a, b) for a, b in pairs if a is not b)
        return found

    def _move(self, node: Node) -> None:
        origin = self._place[node]
        origin.moveBefore(self._follower(node))
        for value in origin.inputs():
            if value.node().kind() in CONTAINERS:
                value.node().moveBefore(origin)

    def _follower(self, node: Node) -> jit.Node:
        while node not in self._place or node in self._moved:
            node = node.next
        place = self._place[node]
        # The lists that the node reads are directly in front of it, see `sink_containers`.
        while place.prev().kind() in CONTAINERS:
            place = place.prev()
        return place

    def _emit(self, node: Node) -> None:
        if node.op == "get_attr":
            constant = getattr(self._mirror.module, str(node.target))
            self._values[node] = self._value(constant)
            return
        if node.target is operator.getitem:
            source, index = node.args[0], node.args[1]
            made = self._results.get(source)  # type: ignore[arg-type]
            if made is None:  # an operation of the model with several results
                raise LookupError(f"{node.name} selects from something that is not a new operator")
            self._values[node] = made.outputsAt(index)  # type: ignore[arg-type]
            return
        overload = _overload(node.target)
        inputs = self._inputs(node, overload)
        name = overload._schema.name
        made = self._graph.create(name, inputs, len(overload._schema.returns))
        self._graph.insertNode(made)
        self._results[node] = made
        if overload is torch.ops.fusewheel.run.default:
            self._results[node] = self._unpacked(made, node)
        elif made.outputsSize() == 1:
            self._values[node] = made.output()
        if not made.schema().startswith(f"{name}{_dot(overload)}("):
            raise LookupError(f"TorchScript takes {overload} for {made.schema()}")

    def _inputs(self, node: Node, overload: OpOverload) -> list[jit.Value]:
        """The arguments in the order of the schema, with all defaults."""
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

    def _unpacked(self, made: jit.Node, node: Node) -> jit.Node:
        """The tensors of the list that a program returns."""
        made.output().setType(jit.ListType(jit.TensorType.get()))
        results = value_of(node)
        assert isinstance(results, list)
        unpack = self._graph.create("prim::ListUnpack", [made.output()], len(results))
        return self._graph.insertNode(unpack)

    def _value(self, argument: Any) -> jit.Value:
        if isinstance(argument, Node):
            return self._values[argument]
        if isinstance(argument, list) and any(isinstance(item, Node) for item in argument):
            values = [self._values[item] for item in argument]
            items = self._graph.create("prim::ListConstruct", values, 1)
            items.output().setType(jit.ListType(jit.TensorType.get()))
            return self._graph.insertNode(items).output()
        return self._graph.insertConstant(argument)  # type: ignore[attr-defined]

    def _destroy(self) -> None:
        """Destroy the replaced nodes, last first, and lists that nothing reads any more."""
        counterparts: dict[str, list[Node]] = {}
        for origin, node in self._mirror.pairs:
            counterparts.setdefault(_key(origin), []).append(node)
        for origin in reversed(list(self._graph.nodes())):
            if origin.kind() in CONTAINERS:
                dead = not origin.hasUses()
            else:
                nodes = counterparts.get(_key(origin), [])
                dead = bool(nodes) and all(is_erased(node) for node in nodes)
            if dead:
                origin.destroy()


def _key(node: jit.Node) -> str:
    # Two Python objects for one node are not equal, but its results have unique numbers.
    return ",".join(str(value.unique()) for value in node.outputs())


def _dot(overload: OpOverload) -> str:
    name = overload._schema.overload_name
    return f".{name}" if name else ""


def _overload(target: Any) -> OpOverload:
    if isinstance(target, OpOverload):
        return target
    name = jit.builtin_named(target)
    if name is None:
        raise LookupError(f"{target} is not an operator of TorchScript")
    namespace, _, stem = name.partition("::")
    result: OpOverload = getattr(getattr(torch.ops, namespace), stem).default
    return result

"""Facts about a node of a TorchScript graph: its operation, what it reads, what it may write."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from fusewheel._torch import jit
from fusewheel._torch.overloads import OpOverload
from fusewheel.jit.graph.numbers import enumerated
from fusewheel.jit.graph.passes import is_top_level

_SCHEMA = re.compile(r"(\w+)::(\w+)(?:\.(\w+))?\(")
# Tracing writes the source line of a node in another form than scripting and Python.
_TRACED = re.compile(r"^(.+):(\d+):\d+$", re.MULTILINE)


def overload_of(node: jit.Node) -> OpOverload | None:
    """The overload that a node calls; None if it calls none, or has blocks."""
    found = _SCHEMA.match(node.schema()) if node.schema() != "(no schema)" else None
    if found is None or any(True for _ in node.blocks()):
        return None
    namespace, name, overload = found.groups()
    try:
        packet = getattr(getattr(torch.ops, namespace), name)
        result: OpOverload = getattr(packet, overload or "default")
    except AttributeError:
        return None
    return result


def spelled(overload: OpOverload, values: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a call in Python: without those that have their default.

    Raises:
        LookupError: if a number stands for an unknown dtype, layout or memory format.
    """
    arguments: list[Any] = []
    options: dict[str, Any] = {}
    left_out = False
    for argument, value in zip(overload._schema.arguments, values, strict=True):
        kind = str(getattr(argument, "real_type", argument.type))
        if argument.has_default_value() and _equals(value, argument.default_value):
            left_out = True
            continue
        value = enumerated(kind, value)
        if left_out or argument.kwarg_only:
            options[argument.name] = value
        else:
            arguments.append(value)
    return arguments, options


def _equals(value: Any, default: Any) -> bool:
    plain = (bool, int, float, str, type(None))
    return isinstance(value, plain) and type(value) is type(default) and value == default


def captured(node: jit.Node) -> list[int]:
    """The values that a node and the blocks in it read."""
    found: dict[int, None] = {}
    todo = [node]
    while todo:
        current = todo.pop()
        for value in current.inputs():
            found[value.unique()] = None
        for block in current.blocks():
            todo += [*block.nodes(), block.returnNode()]
    return list(found)


def location(node: jit.Node) -> str:
    """The line of the model that a node comes from, written as in a Python traceback."""
    return _TRACED.sub(r'File "\1", line \2', str(node.sourceRange()))


_PURE = frozenset(
    {
        *("prim::Constant", "prim::Uninitialized", "prim::If", "prim::Loop"),
        *("prim::ListConstruct", "prim::TupleConstruct", "prim::DictConstruct"),
        *("prim::ListUnpack", "prim::TupleUnpack", "prim::TupleIndex"),
    }
)


def is_pure(node: jit.Node) -> bool:
    """Whether a node is a dictionary, a branch or a loop in which nothing is written."""
    kinds = ("prim::DictConstruct", "prim::If", "prim::Loop")
    return node.kind() in kinds and all(map(_writes_nothing, inside(node)))


def _writes_nothing(node: jit.Node) -> bool:
    schema = node.schema()
    return node.kind() in _PURE or (schema != "(no schema)" and "!" not in schema)


def nodes_in(graph: jit.Graph) -> Iterator[jit.Node]:
    """All nodes of a graph, including those in branches and loops."""
    for node in graph.nodes():
        yield node
        yield from inside(node)


def inside(node: jit.Node) -> Iterator[jit.Node]:
    """All nodes in the blocks of a node."""
    for block in node.blocks():
        for inner in block.nodes():
            yield inner
            yield from inside(inner)


# Nodes that pass a list on, so that it may be changed under another name.
_HOLDERS = ("prim::ListConstruct", "prim::DictConstruct", "prim::SetAttr", "prim::If", "prim::Loop")


def is_changed(node: jit.Node) -> bool:
    """Whether a list may be written to after it is made."""
    if node.kind() != "prim::ListConstruct":
        return False
    for user in (use.user for use in node.output().uses()):
        if "!" in user.schema() or user.kind() in _HOLDERS or not is_top_level(user):
            return True
        if user.kind() == "prim::TupleConstruct":
            holders = (use.user for use in user.output().uses())
            if any(holder.kind() != "prim::Return" for holder in holders):
                return True
    return False

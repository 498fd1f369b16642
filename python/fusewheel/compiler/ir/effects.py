"""What a graph does besides computing values: writes in place, and changes of global modes."""

from __future__ import annotations

import contextlib
import inspect
import operator
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch.fx import Graph, Node

from fusewheel._torch.overloads import HigherOrderOperator, OpOverload, OpOverloadPacket
from fusewheel.compiler.ir.metadata import bodies_of, storage_of, tensor_of, value_of


@dataclass(frozen=True)
class Modes:
    """The global modes under which a node runs.

    Attributes:
        grad: whether autograd records; None if the caller of the graph decides.
        inference: the arguments of the open inference modes.
        autocast: the arguments of the open autocast regions, outermost first.
        functorch: depth of functorch transforms.
    """

    grad: bool | None = None
    inference: tuple[bool, ...] = ()
    autocast: tuple[tuple[Any, ...], ...] = ()
    functorch: int = 0

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Run a block under these modes, on top of the ones that are active already."""
        with contextlib.ExitStack() as stack:
            if self.grad is not None:
                stack.enter_context(torch.set_grad_enabled(self.grad))
            for inference in self.inference:
                stack.enter_context(torch.inference_mode(inference))
            for device, dtype, enabled, cached in self.autocast:
                stack.enter_context(torch.autocast(device, dtype, enabled, cached))
            yield


def modes_of(graph: Graph, outside: Modes | None = None) -> dict[Node, Modes]:
    """The modes at each node of a graph; `outside` are the modes that the graph is called under."""
    current, found = outside or Modes(), {}
    for node in graph.nodes:
        found[node] = current
        if node.op == "call_function" and tensor_of(node) is None:
            current = _after(node, current)
    return found


def _after(node: Node, modes: Modes) -> Modes:
    name = getattr(node.target, "__name__", "")
    if name == "_set_grad_enabled":
        return replace(modes, grad=bool(node.args[0]))
    if name == "_enter_inference_mode":
        return replace(modes, inference=(*modes.inference, bool(node.args[0])))
    if name == "_exit_inference_mode":
        return replace(modes, inference=modes.inference[:-1])
    if name == "_enter_autocast":
        arguments = (*node.args, None, True, None)[:4]
        return replace(modes, autocast=(*modes.autocast, arguments))
    if name == "_exit_autocast":
        return replace(modes, autocast=modes.autocast[:-1])
    if name.endswith("_increment_nesting"):
        return replace(modes, functorch=modes.functorch + 1)
    if name.endswith("_decrement_nesting"):
        return replace(modes, functorch=modes.functorch - 1)
    return modes


@dataclass(frozen=True)
class Write:
    """A node that overwrites memory; `storages` is None if it is not known which."""

    node: Node
    storages: frozenset[int] | None


class Effects:
    """All in-place writes of a graph and the nodes that share memory."""

    def __init__(self, graph: Graph) -> None:
        self.writes: list[Write] = []
        self._sharing: dict[int, list[Node]] = defaultdict(list)
        for node in graph.nodes:
            self.add(node)

    def add(self, node: Node) -> None:
        """Add a node; writes have to be added in graph order."""
        for storage in _storages(value_of(node)) or ():
            self._sharing[storage].append(node)
        if node.op in ("call_function", "call_method", "call_module"):
            targets = _written(node)
            if targets:
                self.writes.append(Write(node, _union(map(_node_storages, targets))))

    def forget(self, node: Node) -> None:
        """Forget a node that is about to be erased."""
        for storage in _storages(value_of(node)) or ():
            self._sharing[storage].remove(node)
        self.writes = [write for write in self.writes if write.node is not node]

    @contextlib.contextmanager
    def updating(self, nodes: Collection[Node]) -> Iterator[None]:
        """A block in which these nodes, or their values, change; much cheaper than new effects."""
        for node in nodes:
            self.forget(node)
        yield
        for node in nodes:
            self.add(node)
        self.writes.sort(key=lambda write: write.node)

    def sharing(self, node: Node) -> list[Node]:
        """The nodes whose value shares memory with that of the node, the node included."""
        keys = _storages(value_of(node)) or ()
        return [other for key in keys for other in self._sharing[key]]

    def conflicting(
        self, nodes: Iterable[Node], first: Node, last: Node | None, ignore: frozenset[Node]
    ) -> Node | None:
        """The first write to the memory of `nodes` after `first` and before `last` (None: end)."""
        memory = _union(map(_node_storages, nodes))
        for write in self.writes:
            if write.node in ignore or write.node < first:
                continue
            if last is not None and last < write.node:
                break
            if memory is None or write.storages is None or memory & write.storages:
                return write.node
        return None

    def may_write_to(self, nodes: Iterable[Node]) -> bool:
        """Whether there is a write that may hit the memory of `nodes`."""
        memory = _union(map(_node_storages, nodes))
        return any(
            memory is None or write.storages is None or memory & write.storages
            for write in self.writes
        )


def _union(parts: Iterable[frozenset[int] | None]) -> frozenset[int] | None:
    found: set[int] = set()
    for part in parts:
        if part is None:
            return None
        found |= part
    return frozenset(found)


def _storages(value: object) -> frozenset[int] | None:
    if isinstance(value, torch.Tensor):
        key = storage_of(value)
        return None if key is None else frozenset((key,))
    if isinstance(value, (tuple, list)):
        return _union(map(_storages, value))
    return frozenset()


def _node_storages(node: Node) -> frozenset[int] | None:
    value = value_of(node)
    # A value without metadata may be a tensor.
    return None if value is None else _storages(value)


_INPLACE_NAMES = frozenset(
    name
    for name in dir(operator)
    if name in ("setitem", "delitem") or (name.startswith("i") and f"__{name}__" in dir(operator))
) - {"inv", "invert", "index"}
_INPLACE_OPERATORS = frozenset(getattr(operator, name) for name in _INPLACE_NAMES)


def _written(node: Node) -> list[Node]:
    """The arguments a call overwrites; all of its tensors where the callee is not known."""
    out = node.kwargs.get("out")
    written = [*_nodes_in(out)]
    target = node.target
    if node.op == "call_method":
        name = str(target)
        dunder = name.startswith("__") and name.endswith("__")
        if name[2:-2] in _INPLACE_NAMES if dunder else name.endswith("_"):
            written += _nodes_in(node.args[0])
        return written
    if isinstance(target, OpOverload):
        return [*written, *_written_by_schema(node, target)]
    if isinstance(target, OpOverloadPacket) and not _is_torch(target):
        # The arguments decide which overload is called, so all of them count.
        overloads = [getattr(target, name) for name in target.overloads()]
        return [*written, *(n for one in overloads for n in _written_by_schema(node, one))]
    if target in _INPLACE_OPERATORS:
        return [*written, *_nodes_in(node.args[0])]
    if isinstance(target, HigherOrderOperator):
        bodies = bodies_of(node)
        if bodies and not any(Effects(body.graph).writes for body in bodies):
            return written
    if not callable(target) or not _is_torch(target):
        return [n for n in node.all_input_nodes if n.op != "get_attr"]
    name = getattr(target, "__name__", "")
    if name in ("and_", "or_", "not_", "is_"):  # of the module `operator`; they write nothing
        return written
    if name.endswith("_") and not name.endswith("__"):
        return [*written, *_nodes_in(node.args[0])]
    if name == "batch_norm":  # the running statistics
        return [*written, *_nodes_in([*node.args[1:3], *node.kwargs.values()])]
    if _inplace_flag(node):
        written += _nodes_in(node.args[0] if node.args else list(node.kwargs.values()))
    return written


def _nodes_in(argument: object) -> list[Node]:
    if isinstance(argument, Node):
        return [argument]
    if isinstance(argument, (tuple, list)):
        return [node for item in argument for node in _nodes_in(item)]
    return []


def _written_by_schema(node: Node, target: OpOverload) -> list[Node]:
    written = []
    for position, argument in enumerate(target._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = node.args[position] if position < len(node.args) else None
            written += _nodes_in(node.kwargs.get(argument.name, given))
    return written


def _is_torch(target: Any) -> bool:
    """Whether a callee belongs to PyTorch or Python, whose names tell what they write."""
    if isinstance(target, OpOverloadPacket):
        return str(target).startswith("aten.")
    if isinstance(target, HigherOrderOperator):
        return False
    module = getattr(target, "__module__", None) or ""
    return module.partition(".")[0] in ("torch", "_operator", "operator", "builtins", "math", "")


@cache
def _signature(target: Any) -> inspect.Signature | None:
    try:
        return inspect.signature(target)
    except (TypeError, ValueError):  # a builtin without a signature
        return None


def _inplace_flag(node: Node) -> bool:
    """Whether a functional is called with ``inplace=True``."""
    if "inplace" in node.kwargs:
        return bool(node.kwargs["inplace"])
    signature = _signature(node.target) if node.args else None
    if signature is None or "inplace" not in signature.parameters:
        return False
    position = list(signature.parameters).index("inplace")
    return position < len(node.args) and bool(node.args[position])

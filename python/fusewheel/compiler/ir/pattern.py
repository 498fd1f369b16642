"""The contract between a pattern and the rewriter.

A pattern file declares one `Pattern`. Its `match` looks at an anchor node and answers

* None: this node has nothing to do with the pattern;
* `Match`: the nodes that compute what the operator computes, and how to emit the operator;
* raises `Refuse`: a near miss, with the reason that the user reads in the report.

A matcher proves equality of values. What every rewrite has to respect in the same way (single use
of interior values, writes in place, global modes, implicit casts, kernels, cost) is checked by
`fusewheel.compiler.checks`.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Graph, Node

from .effects import Effects, Modes, modes_of
from .metadata import value_of


class Refuse(Exception):
    """Raised by a matcher whose anchor is there but whose equality is not proven."""


def require(condition: bool, reason: str) -> None:
    """Refuse the match with `reason` unless the condition holds."""
    if not condition:
        raise Refuse(reason)


@dataclass(frozen=True)
class Caller:
    """The only call of a graph that is the body of a higher-order operator.

    Attributes:
        context: the graph that calls.
        node: the call.
        given: what each placeholder of the body stands for there.
    """

    context: Context
    node: Node
    given: Mapping[Node, Node]


class Context:
    """A graph with the facts that matchers and checks ask for.

    Args:
        graph: the graph.
        modes: those it is called under.
        caller: where it is called, if it is a body that is called once.
    """

    def __init__(
        self, graph: Graph, modes: Modes | None = None, caller: Caller | None = None
    ) -> None:
        self.graph = graph
        self.caller = caller
        self.effects = Effects(graph)
        self.modes: dict[Node, Modes] = modes_of(graph, modes)
        # Not that of the tracing context: Dynamo has exchanged it when it calls a backend.
        fakes = (getattr(value_of(node), "fake_mode", None) for node in graph.nodes)
        self._fake = next((fake for fake in fakes if fake is not None), None)

    def outside(self, node: Any) -> Any:
        """What a placeholder stands for where this graph is called; everything else as it is."""
        caller = self.caller
        while caller is not None and isinstance(node, Node):
            node, caller = caller.given.get(node, node), caller.context.caller
        return node

    @contextlib.contextmanager
    def active(self, node: Node) -> Iterator[None]:
        """Run a block on example values as the graph runs at a node."""
        modes = self.modes[node]
        if "example_value" not in node.meta:
            # ATen metadata knows nothing of gradients, see `requires_grad`.
            modes = replace(modes, grad=False)
        with _without_hooks(), self._fake or contextlib.nullcontext(), modes.active():
            yield

    def add(self, node: Node, like: Node) -> None:
        """Take note of a new node that stands beside `like`."""
        self.modes[node] = self.modes[like]
        self.effects.add(node)

    def erase(self, node: Node) -> None:
        """Erase a node without users from the graph."""
        self.effects.forget(node)
        del self.modes[node]
        self.graph.erase_node(node)


@contextlib.contextmanager
def _without_hooks() -> Iterator[None]:
    """Keep example values from the user's saved-tensor hooks: a checkpoint counts what it saves."""
    before = torch._C._autograd._saved_tensors_hooks_set_tracing(True)
    try:
        yield
    finally:
        torch._C._autograd._saved_tensors_hooks_set_tracing(before)


# Nodes that export leaves behind casts; they read metadata and die with what they look at.
_ASSERTIONS = (torch.ops.aten._assert_tensor_metadata.default,)


def is_assertion(node: Node) -> bool:
    """Whether a node only asserts the metadata of its argument."""
    return node.op == "call_function" and node.target in _ASSERTIONS


def users_of(node: Node) -> list[Node]:
    """The users of a node's value."""
    return [user for user in node.users if not is_assertion(user)]


def sole_user(node: Node, what: str) -> Node:
    """The only user of a node.

    Raises:
        Refuse: if there is none or there are several; `what` names the value.
    """
    users = users_of(node)
    require(len(users) == 1, f"{what} is used {len(users)} times, not once")
    return users[0]


class Builder:
    """Emits nodes and fills their metadata.

    Args:
        context: the graph.
        before: the node in front of which they go.
        origin: the node whose place in the user's code they inherit.
    """

    def __init__(self, context: Context, before: Node, origin: Node) -> None:
        self._context = context
        self._before = before
        self._origin = origin
        self.key = "example_value" if "example_value" in origin.meta else "val"
        self.nodes: list[Node] = []

    def call(self, target: Callable[..., Any], *args: Any, **options: Any) -> Node:
        """Emit a call; arguments are nodes and constants, options constants."""
        return self._emit(target, args, options)

    def item(self, node: Node, index: int) -> Node:
        """Emit the selection of one output of a call."""
        return self._emit(operator.getitem, (node, index), {})

    def _emit(
        self, target: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]
    ) -> Node:
        graph = self._context.graph
        with graph.inserting_before(self._before):
            node = graph.call_function(target, args, options)
        self.nodes.append(node)
        for key in ("stack_trace", "nn_module_stack", "source_fn_stack", "custom"):
            if key in self._origin.meta:
                node.meta[key] = self._origin.meta[key]
        values = [value_of(arg) if isinstance(arg, Node) else arg for arg in args]
        with self._context.active(self._origin):
            node.meta[self.key] = target(*values, **options)
        return node

    def discard(self) -> None:
        """Take back everything that was emitted."""
        for node in reversed(self.nodes):
            self._context.graph.erase_node(node)
        self.nodes.clear()


@dataclass(frozen=True)
class Match:
    """A part of a graph that an operator can replace.

    Attributes:
        inputs: the nodes the operator reads.
        roots: the values it replaces.
        interior: values inside the pattern; nothing outside may use them.
        absorbed: values the operator recomputes (casts of an input, ``1 + weight``); other users
            keep them.
        saved: those of the roots that the operator keeps for backward.
        build: emits the replacement and returns one node for each root.
        widened: values whose dtype does not follow from their operands, because of autocast or an
            argument, which the operator computes in that dtype all the same.
    """

    inputs: tuple[Node, ...]
    roots: tuple[Node, ...]
    interior: frozenset[Node]
    build: Callable[[Builder], Sequence[Node]]
    absorbed: frozenset[Node] = frozenset()
    widened: frozenset[Node] = frozenset()
    saved: frozenset[Node] = frozenset()

    @property
    def computed(self) -> frozenset[Node]:
        """Every node whose work the operator takes over."""
        return self.interior | self.absorbed | frozenset(self.roots)

    def place(self) -> Node:
        """The node before which the operator goes: the last root, or an earlier use of another.

        Raises:
            Refuse: if an input is computed after that use.
        """
        users = (user for root in self.roots for user in root.users)
        place = min([*users, max(self.roots)])
        for node in self.inputs:
            require(node < place, f"{place.name} needs a result before {node.name} is known")
        return place


@dataclass(frozen=True)
class Pattern:
    """One rewrite.

    Attributes:
        name: how reports and logs call it.
        operator: qualified name of the operator it emits.
        anchors: canonical operations at which a match can start.
        match: the matcher, see the module's description.
        order: patterns run by ascending order, so that a larger pattern comes before its parts.
        cost: says why a match that is correct is not worth its rewrite, None if it is.
    """

    name: str
    operator: str
    anchors: frozenset[str]
    match: Callable[[Context, Node], Match | None]
    order: int = 0
    cost: Callable[[Match], str | None] | None = None

    def overload(self) -> torch._ops.OpOverload:
        """The dispatcher overload.

        Raises:
            Refuse: if no loaded library defines the operator.
        """
        namespace, name = self.operator.split("::")
        packet = getattr(getattr(torch.ops, namespace), name, None)
        if packet is None:
            raise Refuse(f"operator {self.operator} is not loaded")
        overload: torch._ops.OpOverload = packet.default
        return overload

"""What a pattern is, and what it returns to the rewriter.

A pattern file declares one `Pattern`. Its function `match` looks at an anchor node and

* returns None if the node has nothing to do with the pattern;
* returns a `Match` with the nodes that compute what the operator computes, and how to emit it;
* raises `Refuse` for a near miss, with the reason that the user reads in the report.

`match` proves that values are equal. `fusewheel.compiler.match.checks` checks the rest for every
pattern: single use of interior values, writes in place, global modes, implicit casts, kernels,
cost.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Graph, Node

from fusewheel._torch.autograd import saved_tensor_hooks_off
from fusewheel._torch.fx import quiet
from fusewheel._torch.overloads import OpOverload
from fusewheel.compiler.ir.effects import Effects, Modes, modes_of
from fusewheel.compiler.ir.equal_calls import EqualCalls
from fusewheel.compiler.ir.metadata import value_of


class Refuse(Exception):
    """Raised by a matcher that found its anchor but cannot prove that the values are equal."""


def require(condition: bool, reason: str) -> None:
    """Refuse the match with `reason` unless the condition holds."""
    if not condition:
        raise Refuse(reason)


@dataclass(frozen=True)
class Caller:
    """The only call of a graph that is the body of a higher-order operator.

    Attributes:
        context: the graph with the call.
        node: the call.
        given: the node of the calling graph that each placeholder of the body stands for.
    """

    context: Context
    node: Node
    given: Mapping[Node, Node]


class Context:
    """A graph with the facts that matchers and checks need.

    Args:
        graph: the graph.
        modes: the modes that it is called under.
        caller: its call, if it is a body that is called once.
    """

    def __init__(
        self, graph: Graph, modes: Modes | None = None, caller: Caller | None = None
    ) -> None:
        self.graph = graph
        self.caller = caller
        self.effects = Effects(graph)
        self.modes: dict[Node, Modes] = modes_of(graph, modes)
        self._calls = EqualCalls()
        # Not the fake mode of the tracing context, which Dynamo replaces before it calls a backend.
        fakes = (getattr(value_of(node), "fake_mode", None) for node in graph.nodes)
        self._fake = next((fake for fake in fakes if fake is not None), None)

    def outside(self, node: Any) -> Any:
        """The node of the calling graph that a placeholder stands for; other nodes unchanged."""
        caller = self.caller
        while caller is not None and isinstance(node, Node):
            node, caller = caller.given.get(node, node), caller.context.caller
        return node

    @contextlib.contextmanager
    def active(self, node: Node) -> Iterator[None]:
        """Run a block under the modes of a node, so that it can compute with example values."""
        modes = self.modes[node]
        if "example_value" not in node.meta:
            # ATen metadata says nothing about gradients, see `requires_grad`.
            modes = replace(modes, grad=False)
        fake = self._fake or contextlib.nullcontext()
        # What an operator raises is a reason to leave something as it is.
        with saved_tensor_hooks_off(), quiet(), fake, modes.active():
            yield

    def compute(
        self,
        node: Node,
        target: Callable[..., Any] | str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """What a call returns for example values and constants, under the modes of a node.

        The target is a function, or the name of a method of the first argument.
        """
        modes = self.modes[node], "example_value" in node.meta
        with self.active(node):
            return self._calls(target, args, kwargs, modes)

    def add(self, node: Node, like: Node) -> None:
        """Add a new node, which runs under the modes of `like`."""
        self.modes[node] = self.modes[like]
        self.effects.add(node)

    def erase(self, node: Node) -> None:
        """Erase a node without users from the graph."""
        self.effects.forget(node)
        del self.modes[node]
        self.graph.erase_node(node)


# Export adds these behind casts. They only read metadata, and may vanish with their argument.
_ASSERTIONS = (torch.ops.aten._assert_tensor_metadata.default,)


def is_assertion(node: Node) -> bool:
    """Whether a node only asserts the metadata of its argument."""
    return node.op == "call_function" and node.target in _ASSERTIONS


def users_of(node: Node) -> list[Node]:
    """The users of a node's value; assertions of its metadata do not count."""
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
        before: the node that they are put in front of.
        origin: the node whose place in the user's code they take over.
    """

    def __init__(self, context: Context, before: Node, origin: Node) -> None:
        self._context = context
        self._before = before
        self._origin = origin
        self.key = "example_value" if "example_value" in origin.meta else "val"
        self.nodes: list[Node] = []

    def call(self, target: Callable[..., Any], *args: Any, **options: Any) -> Node:
        """Emit a call; arguments are nodes and constants, options constants."""
        values = [value_of(arg) if isinstance(arg, Node) else arg for arg in args]
        value = self._context.compute(self._origin, target, values, options)
        return self._emit(target, args, options, value)

    def item(self, node: Node, index: int) -> Node:
        """Emit the selection of one output of a call."""
        several: Any = value_of(node)
        return self._emit(operator.getitem, (node, index), {}, several[index])

    def _emit(
        self, target: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any], value: Any
    ) -> Node:
        graph = self._context.graph
        with graph.inserting_before(self._before):
            node = graph.call_function(target, args, options)
        self.nodes.append(node)
        for key in ("stack_trace", "nn_module_stack", "source_fn_stack", "custom"):
            if key in self._origin.meta:
                node.meta[key] = self._origin.meta[key]
        node.meta[self.key] = value
        return node

    def discard(self) -> None:
        """Remove everything that was emitted."""
        for node in reversed(self.nodes):
            self._context.graph.erase_node(node)
        self.nodes.clear()


@dataclass(frozen=True)
class Match:
    """A part of a graph that an operator can replace.

    Attributes:
        inputs: the nodes that the operator reads.
        roots: the values that it replaces.
        interior: values inside the pattern, which nothing outside may use.
        absorbed: values that the operator computes itself (casts of an input, ``1 + weight``); they
            stay if something else uses them.
        saved: the roots that the operator keeps for its backward.
        build: emits the replacement and returns one node for each root.
        widened: values whose dtype does not follow from their operands, because autocast or an
            argument sets it; the operator computes them in that dtype too.
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
        """All nodes whose work the operator does."""
        return self.interior | self.absorbed | frozenset(self.roots)

    def place(self) -> Node:
        """The node that the operator is put in front of: the last root, or an earlier user of
        another root.

        Raises:
            Refuse: if an input is computed after that node.
        """
        users = (user for root in self.roots for user in root.users)
        place = min([*users, max(self.roots)])
        for node in self.inputs:
            require(node < place, f"{place.name} needs a result before {node.name} is known")
        return place


@dataclass(frozen=True)
class PaysAbove:
    """The sizes up to which an operator is slower than the code that it replaces.

    A size is the number of elements of the largest argument, on a CPU. The operator pays above it.
    0, the default of all four, means that it always pays.

    Attributes:
        inductor: compared with Inductor's code, without a gradient.
        inductor_training: compared with Inductor's code, forward and backward.
        none: compared with PyTorch's operators (``inner="none"``), without a gradient.
        none_training: compared with PyTorch's operators, forward and backward.
    """

    inductor: int = 0
    inductor_training: int = 0
    none: int = 0
    none_training: int = 0

    def limit(self, inner: str, training: bool) -> int:
        """The size up to which the operator does not pay.

        Args:
            inner: the inner compiler, ``"inductor"`` or ``"none"``.
            training: whether there is a gradient.
        """
        size: int = getattr(self, f"{inner}_training" if training else inner)
        return size


@dataclass(frozen=True)
class Pattern:
    """One rewrite.

    Attributes:
        name: its name in reports and logs.
        operator: the qualified name of the operator that it emits.
        anchors: the canonical operations at which a match can start.
        match: the matcher, see the docstring of this module.
        order: patterns run in ascending order, so that a larger pattern runs before its parts;
            default 0.
        cost: returns the reason why a correct match would not be faster, or None if it would;
            default None, which means that it always is.
        pays_above: the sizes up to which the operator is slower; default none.
    """

    name: str
    operator: str
    anchors: frozenset[str]
    match: Callable[[Context, Node], Match | None]
    order: int = 0
    cost: Callable[[Match], str | None] | None = None
    pays_above: PaysAbove = PaysAbove()

    def overload(self) -> OpOverload:
        """The operator in `torch.ops`.

        Raises:
            Refuse: if no loaded library defines the operator.
        """
        namespace, name = self.operator.split("::")
        packet = getattr(getattr(torch.ops, namespace), name, None)
        if packet is None:
            raise Refuse(f"operator {self.operator} is not loaded")
        overload: OpOverload = packet.default
        return overload

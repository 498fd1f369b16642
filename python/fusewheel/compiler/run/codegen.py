"""Writes a graph as one flat Python function.

Unlike ``GraphModule.forward`` it looks functions up once and not in every call, calls operators
without the Python function in front of them, and does not name results that nothing uses.
"""

from __future__ import annotations

import builtins
import functools
import itertools
import linecache
import operator
import os
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from keyword import kwlist
from math import isfinite
from typing import Any

from torch import Tensor
from torch.fx import GraphModule, Node

from fusewheel._torch.overloads import OpOverload, OpOverloadPacket, name_of_call, shortest_call
from fusewheel.compiler.ir.source import line_of

_numbers = itertools.count()
_LITERALS = (bool, int, str, type(None), type(Ellipsis))
_INFIX: dict[Any, str] = {
    operator.add: "+",
    operator.sub: "-",
    operator.mul: "*",
    operator.truediv: "/",
    operator.floordiv: "//",
    operator.lt: "<",
    operator.le: "<=",
    operator.gt: ">",
    operator.ge: ">=",
    operator.and_: "&",
    operator.or_: "|",
    operator.matmul: "@",
}


def generate(gm: GraphModule, constants: dict[Node, Tensor]) -> Callable[..., Any]:
    """The function that runs a graph.

    Args:
        gm: the graph. The function keeps it only if it uses attributes or submodules of it.
        constants: the values of nodes that the function does not compute.

    Returns:
        a function of the graph's placeholders that are no constants; it deletes each value after
        its last use.
    """
    writer = _Writer(gm, constants)
    source = "\n".join(writer.lines())
    # The name makes the lines appear in tracebacks.
    name = f"<fusewheel graph {next(_numbers)}>"
    linecache.cache[name] = len(source), None, source.splitlines(keepends=True), name
    exec(compile(source, name, "exec"), writer.namespace)
    function: Callable[..., Any] = writer.namespace.pop("graph")
    # A traceback holds the code, and so the lines that it shows.
    weakref.finalize(function.__code__, linecache.cache.pop, name, None)
    return function


class _Writer:
    """The text of the function, and the objects that its global names stand for."""

    def __init__(self, gm: GraphModule, constants: dict[Node, Tensor]) -> None:
        self._gm = gm
        self._constants = constants
        self._bound: dict[int, str] = {}
        self.namespace: dict[str, Any] = {}
        # The text uses builtins, and an operator may have the name of one.
        self._taken = {"graph", *dir(builtins), *kwlist, *(node.name for node in gm.graph.nodes)}

    def lines(self) -> Iterator[str]:
        """The function, line by line; `namespace` is complete after the last one."""
        nodes = [node for node in self._gm.graph.nodes if node not in self._constants]
        last = _last_uses(nodes)
        inputs = [node for node in nodes if node.op == "placeholder"]
        yield f"def graph({', '.join(map(self._parameter, inputs))}):"
        for node in nodes:
            if node.op == "output":
                yield f"    return {self._text(node.args[0])}"
                continue
            done = [n.name for n in last[node] if n not in self._constants]
            if node.op == "placeholder":
                continue
            assign = f"{node.name} = " if node.users else ""
            free = f"; del {', '.join(done)}" if done else ""
            place = os.path.basename(line_of(node).source)
            yield f"    {assign}{self._call(node)}{free}  # {place}"

    def _parameter(self, node: Node) -> str:
        return f"{node.name}={self._text(node.args[0])}" if node.args else node.name

    def _call(self, node: Node) -> str:
        target: Any = node.target
        if node.op == "get_attr":
            return f"{self._name(functools.partial(_attribute, self._gm, target))}()"
        if node.op == "call_module":
            fetch = self._name(functools.partial(self._gm.get_submodule, target))
            return f"{fetch}()({self._arguments(node.args, node.kwargs)})"
        if node.op == "call_method":
            own = self._text(node.args[0])
            return f"{own}.{target}({self._arguments(node.args[1:], node.kwargs)})"
        if target in _INFIX and not node.kwargs:
            return f" {_INFIX[target]} ".join(map(self._text, node.args))
        if target is operator.getitem and not node.kwargs:
            return f"{self._text(node.args[0])}[{self._text(node.args[1])}]"
        arguments = self._arguments(node.args, node.kwargs)
        if isinstance(target, OpOverloadPacket) and target.overloads() == ["default"]:
            target = target.default
        if isinstance(target, OpOverload):
            return f"{self._name(shortest_call(target), name_of_call(target))}({arguments})"
        return f"{self._name(target)}({arguments})"

    def _arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        return ", ".join(
            [*map(self._text, args), *(f"{name}={self._text(v)}" for name, v in kwargs.items())]
        )

    def _text(self, argument: object) -> str:
        """An argument as an expression."""
        if isinstance(argument, Node):
            constant = self._constants.get(argument)
            return argument.name if constant is None else self._name(constant)
        if isinstance(argument, (tuple, slice)) and not _has_nodes(argument):
            return self._name(argument)  # immutable: made once
        if isinstance(argument, slice):
            parts = argument.start, argument.stop, argument.step
            return f"slice({', '.join(map(self._text, parts))})"
        if isinstance(argument, tuple):
            items = "".join(f"{self._text(item)}, " for item in argument)
            return f"({items})" if type(argument) is tuple else self._named(argument)
        if isinstance(argument, list):
            return f"[{', '.join(map(self._text, argument))}]"
        if isinstance(argument, dict):
            pairs = (f"{self._text(key)}: {self._text(v)}" for key, v in argument.items())
            return f"{{{', '.join(pairs)}}}"
        if type(argument) in _LITERALS or (type(argument) is float and isfinite(argument)):
            return repr(argument)
        return self._name(argument)

    def _named(self, argument: tuple[Any, ...]) -> str:
        return f"{self._name(type(argument))}({', '.join(map(self._text, argument))})"

    def _name(self, value: object, label: str = "") -> str:
        """A global name for an object."""
        if id(value) not in self._bound:
            label = label or getattr(value, "__name__", "")
            name = label if label.isidentifier() else f"constant_{len(self._bound)}"
            while name in self._taken:
                name += "_"
            self._taken.add(name)
            self._bound[id(value)] = name
            self.namespace[name] = value
        return self._bound[id(value)]


def _attribute(gm: GraphModule, target: str) -> Any:
    return functools.reduce(getattr, target.split("."), gm)


def _has_nodes(argument: object) -> bool:
    """Whether a tuple or slice has nodes in it, so that every call makes it again."""
    if isinstance(argument, slice):
        argument = argument.start, argument.stop, argument.step
    if isinstance(argument, tuple):
        return any(map(_has_nodes, argument))
    return isinstance(argument, (Node, list, dict))


def _last_uses(nodes: list[Node]) -> dict[Node, list[Node]]:
    """For each node, the values that nothing needs after it."""
    found: dict[Node, list[Node]] = defaultdict(list)
    seen: set[Node] = set()
    for node in reversed(nodes):
        for source in node.all_input_nodes:
            if source not in seen:
                seen.add(source)
                found[node].append(source)
    return found

"""Writes the operations of a function as a graph like Dynamo's, while it runs on fake tensors.

Dynamo reads the bytecode of all that a function calls, which takes seconds for a language model.
Here the function runs as Python runs it, once, and each call of PyTorch that it makes becomes a
node. So what Python decides is decided for all later calls: this is for functions of which that is
known.
"""

from __future__ import annotations

import contextlib
import operator
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.overrides import TorchFunctionMode

from fusewheel._torch.builtins import tree_leaves, tree_map
from fusewheel._torch.fx import Fakes, is_fake, made_again, module_of, storage_key

_TORCH = torch.__path__[0]
_WRITING = frozenset({"__setitem__", "__delitem__", "__set__", "__delete__"})
_LEAVES = frozenset({int, float, bool, str, type(None), torch.SymInt, torch.dtype})
# Of sizes, by the class in sympy.
_FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {"Add": operator.add, "Mul": operator.mul}
_OTHER_NAMES = {"__div__": "__truediv__", "__rdiv__": "__rtruediv__"}


class CannotCapture(Exception):
    """Raised where a graph could not say what a function does."""


class Capture(TorchFunctionMode):
    """Calls of PyTorch as a graph; a mode that is active while the function runs.

    Args:
        tensors: the names of the tensors that the function may use beside its arguments, by `id`.

    Attributes:
        fakes: makes the arguments.
        used: the tensors of the function that the graph takes in front of its arguments, in order.
        calls: the nodes that are no inputs, in order.
    """

    def __init__(self, tensors: Mapping[int, str]) -> None:
        super().__init__()
        self.fakes = Fakes()
        self.used: list[Tensor] = []
        self._tensors = tensors
        self._graph = Graph()
        self._first: Node | None = None  # of the arguments
        self._nodes: dict[int, Node] = {}  # by the `id` of a fake tensor
        self._sizes: dict[Any, Node] = {}  # by symbol
        self._inputs: dict[int, Node] = {}  # by the `id` of a tensor of the function
        self.calls: list[Node] = []
        self._kept: list[Any] = []  # an `id` must not be used again

    def argument(self, name: str, fake: Tensor) -> Tensor:
        """Make a fake tensor an argument of the graph; returns it."""
        node = self._placeholder(name, fake)
        self._first = self._first or node
        for dim, size in enumerate(fake.shape):
            if isinstance(size, torch.SymInt) and size.node.expr not in self._sizes:
                read = self._graph.call_method("size", (node, dim))
                read.meta["example_value"] = size
                self._sizes[size.node.expr] = read
        return fake

    def graph(self, outputs: list[Tensor]) -> GraphModule:
        """The graph of everything so far.

        Raises:
            CannotCapture: if an output was not computed in it.
        """
        for size in reversed(list(self._sizes.values())):
            if not size.users:
                self._graph.erase_node(size)
        self._graph.output(tuple(self.node(output) for output in outputs))
        return module_of(self._graph)

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self._check_writes(func, args, kwargs or {})
        args, kwargs = _mapped(self._known, (args, dict(kwargs or {})))
        result = func(*args, **kwargs)
        if isinstance(result, Tensor) or any(isinstance(x, Tensor) for x in tree_leaves(result)):
            op, target, ordered = _call_of(func, args)
            node = self._graph.create_node(op, target, *_mapped(self._argument, (ordered, kwargs)))
            node.meta["example_value"] = result
            node.meta["stack_trace"] = _caller()
            self._note(node, result)
        return result

    def _check_writes(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Refuse what may write to memory that others see, or that no graph would show.

        Raises:
            CannotCapture: if a function may.
        """
        if torch.is_autocast_enabled("cpu"):
            raise CannotCapture("autocast is active")
        name = _name(func)
        special = name in _WRITING or (name.startswith("__i") and name != "__invert__")
        if special or kwargs.get("out") is not None or kwargs.get("inplace"):
            raise CannotCapture(f"{name} may write to memory")
        schema = getattr(func, "_schema", None)
        if name.endswith("__") or not (name.endswith("_") or (schema and schema.is_mutable)):
            return
        to = args[0] if args else None
        inputs = self._graph.find_nodes(op="placeholder")
        memories = {storage_key(node.meta["example_value"]) for node in inputs}
        own = isinstance(to, Tensor) and is_fake(to) and storage_key(to) not in memories
        if schema is not None or not own:
            raise CannotCapture(f"{name} may write to memory")

    def again(
        self, calls: Sequence[Node], instead: Mapping[Node, Node]
    ) -> Callable[[Tensor], Tensor]:
        """Write calls once more, with other arguments.

        Args:
            calls: nodes of `calls`.
            instead: arguments of these, each with what takes its place.

        Returns:
            a function that gives for a result of these calls the one that takes its place.
        """
        nodes = dict(instead)
        values = [
            (old.meta["example_value"], new.meta["example_value"]) for old, new in nodes.items()
        ]
        made = {id(old): new for old, new in values}
        memories = {storage_key(old): new for old, new in values}
        with self.fakes.copying():
            for old in calls:
                node = nodes[old] = self._graph.node_copy(old, lambda used: nodes.get(used, used))
                value = self._again(old.meta["example_value"], made, memories)
                node.meta = {**old.meta, "example_value": value}
                self.calls.append(node)
                self._kept.append(value)
                if isinstance(value, Tensor):
                    self._nodes[id(value)] = node
        return lambda result: made.get(id(result), result)

    def _again(self, value: Any, made: dict[int, Tensor], memories: dict[int, Tensor]) -> Any:
        if not isinstance(value, Tensor):
            return tuple(self._again(item, made, memories) for item in value)
        if id(value) not in made:
            made[id(value)] = self.fakes.again(value, memories)
        return made[id(value)]

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """A block whose calls are not written."""
        self.__exit__(None, None, None)
        try:
            yield
        finally:
            self.__enter__()

    def _note(self, node: Node, result: Any) -> None:
        self.calls.append(node)
        self._kept.append(result)
        if isinstance(result, Tensor):
            if not is_fake(result):
                raise CannotCapture(f"{node.target} returns a tensor with numbers")
            self._nodes[id(result)] = node
        elif isinstance(result, (tuple, list)):
            for index, item in enumerate(result):
                if isinstance(item, Tensor):
                    one = self._graph.call_function(operator.getitem, (node, index))
                    one.meta.update(node.meta, example_value=item)
                    self._note(one, item)
        else:
            raise CannotCapture(f"{node.target} returns a {type(result).__name__}")

    def input(self, tensor: Tensor, like: Node | None = None) -> Node:
        """The input of the graph that stands for a tensor of the function.

        Args:
            tensor: the tensor.
            like: the input of one with the same sizes, strides and dtype. Default None.
        """
        if id(tensor) not in self._inputs:
            self._known(tensor, like)
        return self._inputs[id(tensor)]

    def is_used(self, tensor: Tensor) -> bool:
        """Whether a tensor of the function was an argument of any call."""
        return id(tensor) in self._inputs

    def _known(self, value: Any, like: Node | None = None) -> Any:
        """The fake of a tensor of the function; any other value as it is."""
        if not isinstance(value, Tensor) or is_fake(value):
            return value
        name = self._tensors.get(id(value))
        if name is None:
            raise CannotCapture("it uses a tensor that is neither an argument nor of the model")
        # Which inputs share memory is nothing to a graph that writes to none.
        fake = self.fakes.of(value) if like is None else made_again(like.meta["example_value"])
        if id(fake) not in self._nodes:
            self.used.append(value)
            with self._graph.inserting_before(self._first):
                self._inputs[id(value)] = self._placeholder(name, fake)
        return fake

    def _placeholder(self, name: str, fake: Tensor) -> Node:
        node = self._graph.placeholder(name.replace(".", "_"))
        node.meta["example_value"] = fake
        self._nodes[id(fake)] = node
        self._kept.append(fake)
        return node

    def _argument(self, value: Any) -> Any:
        """What stands for a value in the graph."""
        if isinstance(value, Tensor):
            return self.node(value)
        if isinstance(value, torch.SymInt):
            return self._size(value.node.expr)
        if isinstance(value, (torch.SymFloat, torch.SymBool)):
            raise CannotCapture("it computes with a symbol that is no size")
        return value

    def node(self, value: Tensor) -> Node:
        """The last call that gave a tensor, or the argument that it is.

        Raises:
            CannotCapture: if none is known.
        """
        node = self._nodes.get(id(value))
        if node is None:
            raise CannotCapture("a tensor was made in a way that no graph shows")
        return node

    def _size(self, expression: Any) -> Any:
        if expression.is_Integer:
            return int(expression)
        if expression not in self._sizes:
            self._sizes[expression] = self._computed(expression)
        return self._sizes[expression]

    def _computed(self, expression: Any) -> Node:
        """The calls that compute a size which no argument has."""
        function = _FUNCTIONS.get(type(expression).__name__)
        if function is None:
            raise CannotCapture(f"it computes the size {expression}")
        parts = list(map(self._size, expression.args))
        found: Any = parts[0]
        for part in parts[1:]:
            values = (x.meta["example_value"] if isinstance(x, Node) else x for x in (found, part))
            found = self._graph.call_function(function, (found, part))
            found.meta["example_value"] = function(*values)
        return cast(Node, found)


def _mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """`tree_map`, without its search for the kind of what is usual."""
    kind = type(value)
    if kind is tuple or kind is list:
        return kind(_mapped(function, item) for item in value)
    if kind is dict:
        return {key: _mapped(function, item) for key, item in value.items()}
    if kind is slice:
        return slice(*(_mapped(function, end) for end in (value.start, value.stop, value.step)))
    if kind in _LEAVES or isinstance(value, Tensor):
        return function(value)
    return tree_map(function, value)


def _call_of(func: Any, args: tuple[Any, ...]) -> tuple[str, Any, tuple[Any, ...]]:
    """How a graph calls a function: kind, target and arguments of the node.

    Raises:
        CannotCapture: if it is not known.
    """
    name = _name(func)
    name = _OTHER_NAMES.get(name, name)
    if not name.startswith("__"):
        is_method = getattr(func, "__qualname__", "").startswith(("Tensor.", "TensorBase."))
        return ("call_method", name, args) if is_method else ("call_function", func, args)
    if (same := getattr(operator, name, None)) is not None:
        return "call_function", same, args
    if name.startswith("__r") and (mirrored := getattr(operator, f"__{name[3:]}", None)):
        return "call_function", mirrored, args[::-1]
    raise CannotCapture(f"graphs do not show {name}")


def _name(func: Any) -> str:
    return str(getattr(func, "__name__", func)).partition(".")[0]


def _caller() -> str:
    """The line outside of torch that makes a call, as Dynamo notes it."""
    frame = sys._getframe(2)
    while frame.f_back is not None and (
        frame.f_code.co_filename.startswith(_TORCH) or frame.f_code.co_filename == __file__
    ):
        frame = frame.f_back
    code = frame.f_code
    return f'  File "{code.co_filename}", line {frame.f_lineno}, in {code.co_name}\n'

"""A TorchScript graph as an FX graph, for the matchers that `fusewheel.compiler` has.

Each operation becomes a call of the same overload, as `torch.export` writes it, with an example
value: the graph is run once on fake tensors. Lists, tuples and constants become the arguments
they are. What is not understood becomes an opaque call without a value, which nothing matches and
which is taken to write to all that it reads.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._dispatch.python import enable_python_dispatcher
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from fusewheel.compiler.metadata import value_of

from .nodes import captured, is_changed, is_pure, location, overload_of, spelled
from .numbers import ARITHMETIC, CONCRETE, PROPERTIES, SAME, Number
from .passes import CONTAINERS

_UNKNOWN = object()


def opaque(*arguments: Any) -> Any:
    """Stands for what is not understood."""
    raise NotImplementedError("it only stands in a graph")


@dataclass
class Mirror:
    """The result.

    Attributes:
        source: the TorchScript graph.
        module: the FX graph.
        pairs: the nodes that have a counterpart, in order.
        values: of an FX node, the value that it mirrors.
        settled: values that are known numbers under the assumptions about the inputs.
    """

    source: torch._C.Graph
    module: GraphModule
    pairs: list[tuple[torch._C.Node, Node]]
    values: dict[Node, torch._C.Value]
    settled: list[tuple[torch._C.Value, bool | int | float]]


def mirror(source: torch._C.Graph, inputs: Sequence[Any], fake_mode: Any) -> Mirror:
    """Mirror a graph.

    Args:
        source: the graph; it is left as it is.
        inputs: example values of its inputs, tensors being fake; `...` where there is none.
        fake_mode: the mode of the fake tensors.
    """
    return _Builder(source, fake_mode).run(inputs)


class _Builder:
    def __init__(self, source: torch._C.Graph, fake_mode: Any) -> None:
        self._fake = fake_mode
        self._graph = Graph()
        # By the number of a value: what stands for it in the FX graph, and where that is a plain
        # number in place of a tensor without dimensions, the tensor.
        self._arguments: dict[int, Any] = {}
        self._tensors: dict[int, Tensor] = {}
        self._source = source
        self._pairs: list[tuple[torch._C.Node, Node]] = []
        self._values: dict[Node, torch._C.Value] = {}
        self._settled: list[tuple[torch._C.Value, bool | int | float]] = []

    def run(self, inputs: Sequence[Any]) -> Mirror:
        for value, example in zip(self._source.inputs(), inputs, strict=True):
            self._input(value, example)
        for node in self._source.nodes():
            self._visit(node)
        outputs = [self._arguments[value.unique()] for value in self._source.outputs()]
        output = self._graph.output(tuple(outputs))
        self._pairs.append((self._source.return_node(), output))
        module = GraphModule(torch.nn.Module(), self._graph)
        return Mirror(self._source, module, self._pairs, self._values, self._settled)

    def _input(self, value: torch._C.Value, example: Any) -> None:
        if example is ... or isinstance(example, (Tensor, torch.SymInt, list, tuple)):
            node = self._graph.placeholder(f"input_{value.unique()}")
            self._define(value, node, _UNKNOWN if example is ... else example)
        else:
            self._arguments[value.unique()] = example

    def _define(self, value: torch._C.Value, node: Node, result: Any) -> None:
        if result is not _UNKNOWN:
            node.meta["example_value"] = result
        self._arguments[value.unique()] = node
        self._values[node] = value

    def _visit(self, node: torch._C.Node) -> None:
        kind = node.kind()
        if kind == "prim::Constant":
            self._constant(node)
        elif kind in CONTAINERS and not is_changed(node):
            items = [self._arguments[value.unique()] for value in node.inputs()]
            whole = items if kind == "prim::ListConstruct" else tuple(items)
            self._arguments[node.output().unique()] = whole
        elif kind in ("prim::ListUnpack", "prim::TupleUnpack"):
            self._unpack(node)
        elif kind in ("aten::__getitem__", "prim::TupleIndex"):
            self._index(node)
        elif kind in SAME and not _is_number(self._read(node.inputsAt(0)), tensor=True):
            self._compute(node)
        elif kind in SAME:
            self._arguments[node.output().unique()] = self._arguments[node.inputsAt(0).unique()]
        else:
            self._compute(node)

    def _constant(self, node: torch._C.Node) -> None:
        value = node.output()
        constant = value.toIValue()
        if isinstance(constant, Tensor):
            fake = self._fake.from_tensor(constant, static_shapes=True)
            plain = constant.dim() == 0 and constant.dtype in (torch.float64, torch.int64)
            if plain and constant.device.type == "cpu":  # so tracing writes Python's numbers
                self._arguments[value.unique()] = constant.item()
                self._tensors[value.unique()] = fake
                return
            with self._graph.inserting_before(next(iter(self._graph.nodes), None)):
                placeholder = self._graph.placeholder(f"constant_{value.unique()}")
            self._define(value, placeholder, fake)
            return
        self._arguments[value.unique()] = constant

    def _unpack(self, node: torch._C.Node) -> None:
        whole = self._arguments[node.inputsAt(0).unique()]
        if isinstance(whole, (list, tuple)) and len(whole) == node.outputsSize():
            for value, item in zip(node.outputs(), whole, strict=True):
                self._arguments[value.unique()] = item
            return
        if not isinstance(whole, Node):
            self._opaque(node)
            return
        self._items(node, whole, list(node.outputs()))

    def _index(self, node: torch._C.Node) -> None:
        whole, index = (self._arguments[value.unique()] for value in node.inputs())
        results = value_of(whole) if isinstance(whole, Node) else whole
        if not isinstance(results, (list, tuple)) or not isinstance(index, int):
            self._compute(node)
        elif not isinstance(whole, Node):
            self._arguments[node.output().unique()] = whole[index]
        elif isinstance(results[index], CONCRETE):
            self._settle(node.output(), results[index])
        else:
            item = self._graph.call_function(operator.getitem, (whole, index))
            self._define(node.output(), item, results[index])
            self._note(node, item)

    def _items(self, node: torch._C.Node, whole: Node, values: Sequence[torch._C.Value]) -> None:
        results = value_of(whole)
        known = isinstance(results, (list, tuple)) and len(results) == len(values)
        for index, value in enumerate(values):
            result = results[index] if known else _UNKNOWN  # type: ignore[index]
            if isinstance(result, CONCRETE):
                self._settle(value, result)
            else:
                item = self._graph.call_function(operator.getitem, (whole, index))
                self._define(value, item, result)
                self._note(node, item)

    def _compute(self, node: torch._C.Node) -> None:
        """An operation: on numbers in Python, on tensors by its overload."""
        if node.kind() == "prim::If":
            self._condition(node)
        overload = overload_of(node)
        if overload is None:
            self._opaque(node)
            return
        result = self._in_python(node)
        try:
            given = [self._arguments[value.unique()] for value in node.inputs()]
            arguments, options = spelled(overload, given)
        except (LookupError, ValueError):  # an unknown dtype; any number of arguments
            self._opaque(node)
            return
        if node.outputsSize() == 1 and isinstance(result, CONCRETE):
            self._settle(node.output(), result)
            return
        call = self._graph.call_function(overload, tuple(arguments), options)
        self._note(node, call)
        if result is _UNKNOWN:
            result = self._on_tensors(node, overload)
        if node.outputsSize() == 1:
            self._define(node.output(), call, result)
        elif node.outputsSize() > 1:
            if result is not _UNKNOWN:
                call.meta["example_value"] = result
            self._items(node, call, list(node.outputs()))

    def _note(self, node: torch._C.Node, call: Node) -> None:
        call.meta["stack_trace"] = location(node)
        self._pairs.append((node, call))

    def _settle(self, value: torch._C.Value, number: bool | int | float) -> None:
        self._arguments[value.unique()] = number
        self._settled.append((value, number))

    def _condition(self, node: torch._C.Node) -> None:
        condition = node.inputsAt(0)
        known = self._read(condition)
        if isinstance(known, (bool, torch.SymBool)):
            # A guard, where it depends on sizes.
            self._settled.append((condition, bool(known)))

    def _read(self, value: torch._C.Value) -> Any:
        """What is known of a value, numbers standing for tensors without dimensions."""
        return map_arg(self._arguments[value.unique()], _known)

    def _in_python(self, node: torch._C.Node) -> Any:
        kind = node.kind()
        values = [self._read(value) for value in node.inputs()]
        function = PROPERTIES.get(kind)
        if function is None or _holds_unknown(values):
            numbers = all(_is_number(v) or isinstance(v, str) or v is None for v in values)
            function = ARITHMETIC.get(kind) if numbers else None
        if function is None:
            return _UNKNOWN
        try:
            return function(*values)
        except Exception:
            return _UNKNOWN

    def _on_tensors(self, node: torch._C.Node, overload: torch._ops.OpOverload) -> Any:
        def known(value: torch._C.Value) -> Any:
            return self._tensors.get(value.unique(), self._read(value))

        values = [known(value) for value in node.inputs()]
        if _holds_unknown(values):
            return _UNKNOWN
        try:
            arguments, options = spelled(overload, values)
            # The C++ of matmul asks for numbers before torch 2.13; its Python takes symbols.
            with self._fake, enable_python_dispatcher(), torch.no_grad():
                return overload(*arguments, **options)
        except Exception:  # whatever the operation refuses, or cannot tell without its data
            return _UNKNOWN

    def _opaque(self, node: torch._C.Node) -> None:
        read = [self._arguments.get(unique) for unique in captured(node)]
        call = self._graph.call_function(dict if is_pure(node) else opaque, (*read,))
        self._note(node, call)
        for index, value in enumerate(node.outputs()):
            item = call
            if node.outputsSize() > 1:
                item = self._graph.call_function(operator.getitem, (call, index))
                self._note(node, item)
            self._define(value, item, _UNKNOWN)


def _known(node: Node) -> Any:
    value = value_of(node)
    return _UNKNOWN if value is None else value


def _holds_unknown(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_holds_unknown, value))
    return value is _UNKNOWN


def _is_number(value: Any, tensor: bool = False) -> bool:
    return isinstance(value, Number) or (tensor and isinstance(value, Tensor))

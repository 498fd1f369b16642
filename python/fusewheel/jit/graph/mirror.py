"""Converts a TorchScript graph to an FX graph, for the matchers of `fusewheel.compiler`.

Each operation becomes a call of the same overload, as `torch.export` writes it. Running the graph
once on fake tensors gives the example values. Lists, tuples and constants become arguments. A node
that is not understood becomes an opaque call without a value: nothing matches it, and it counts as
writing to everything that it reads.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from fusewheel._torch import jit
from fusewheel._torch.dispatcher import kernels_in_python
from fusewheel._torch.overloads import OpOverload
from fusewheel.compiler.ir.metadata import value_of
from fusewheel.jit.graph.nodes import (
    captured,
    is_changed,
    is_pure,
    location,
    overload_of,
    spelled,
)
from fusewheel.jit.graph.numbers import ARITHMETIC, CONCRETE, PROPERTIES, SAME, Number
from fusewheel.jit.graph.passes import CONTAINERS

_UNKNOWN = object()


def opaque(*arguments: Any) -> Any:
    """Stands for a node that is not understood."""
    raise NotImplementedError("it only stands in a graph")


@dataclass
class Mirror:
    """The result.

    Attributes:
        source: the TorchScript graph.
        module: the FX graph.
        pairs: the nodes of both graphs that belong together, in order.
        values: for an FX node, the TorchScript value that it stands for.
        settled: values that are known numbers if the assumptions about the inputs hold.
    """

    source: jit.Graph
    module: GraphModule
    pairs: list[tuple[jit.Node, Node]]
    values: dict[Node, jit.Value]
    settled: list[tuple[jit.Value, bool | int | float]]


def mirror(source: jit.Graph, inputs: Sequence[Any], fake_mode: Any) -> Mirror:
    """Convert a graph.

    Args:
        source: the TorchScript graph, which is not changed.
        inputs: example values of its inputs, with fake tensors; `...` for an input without one.
        fake_mode: the mode of the fake tensors.
    """
    return _Builder(source, fake_mode).run(inputs)


class _Builder:
    def __init__(self, source: jit.Graph, fake_mode: Any) -> None:
        self._fake = fake_mode
        self._graph = Graph()
        # By the number of a TorchScript value: what stands for it in the FX graph; and, if that is
        # a Python number in place of a tensor without dimensions, the tensor.
        self._arguments: dict[int, Any] = {}
        self._tensors: dict[int, Tensor] = {}
        self._source = source
        self._pairs: list[tuple[jit.Node, Node]] = []
        self._values: dict[Node, jit.Value] = {}
        self._settled: list[tuple[jit.Value, bool | int | float]] = []

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

    def _input(self, value: jit.Value, example: Any) -> None:
        if example is ... or isinstance(example, (Tensor, torch.SymInt, list, tuple)):
            node = self._graph.placeholder(f"input_{value.unique()}")
            self._define(value, node, _UNKNOWN if example is ... else example)
        else:
            self._arguments[value.unique()] = example

    def _define(self, value: jit.Value, node: Node, result: Any) -> None:
        if result is not _UNKNOWN:
            node.meta["example_value"] = result
        self._arguments[value.unique()] = node
        self._values[node] = value

    def _visit(self, node: jit.Node) -> None:
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

    def _constant(self, node: jit.Node) -> None:
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

    def _unpack(self, node: jit.Node) -> None:
        whole = self._arguments[node.inputsAt(0).unique()]
        if isinstance(whole, (list, tuple)) and len(whole) == node.outputsSize():
            for value, item in zip(node.outputs(), whole, strict=True):
                self._arguments[value.unique()] = item
            return
        if not isinstance(whole, Node):
            self._opaque(node)
            return
        self._items(node, whole, list(node.outputs()))

    def _index(self, node: jit.Node) -> None:
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

    def _items(self, node: jit.Node, whole: Node, values: Sequence[jit.Value]) -> None:
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

    def _compute(self, node: jit.Node) -> None:
        """Convert an operation: on numbers to Python, on tensors to its overload."""
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

    def _note(self, node: jit.Node, call: Node) -> None:
        call.meta["stack_trace"] = location(node)
        self._pairs.append((node, call))

    def _settle(self, value: jit.Value, number: bool | int | float) -> None:
        self._arguments[value.unique()] = number
        self._settled.append((value, number))

    def _condition(self, node: jit.Node) -> None:
        condition = node.inputsAt(0)
        known = self._read(condition)
        if isinstance(known, (bool, torch.SymBool)):
            # If it depends on sizes, this is a guard.
            self._settled.append((condition, bool(known)))

    def _read(self, value: jit.Value) -> Any:
        """The example of a value; a tensor without dimensions may be given as a number."""
        return map_arg(self._arguments[value.unique()], _known)

    def _in_python(self, node: jit.Node) -> Any:
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

    def _on_tensors(self, node: jit.Node, overload: OpOverload) -> Any:
        def known(value: jit.Value) -> Any:
            return self._tensors.get(value.unique(), self._read(value))

        values = [known(value) for value in node.inputs()]
        if _holds_unknown(values):
            return _UNKNOWN
        try:
            arguments, options = spelled(overload, values)
            # Before torch 2.13 the C++ of matmul needs numbers; its Python takes symbolic sizes.
            with self._fake, kernels_in_python(), torch.no_grad():
                return overload(*arguments, **options)
        except Exception:  # the operation refuses its arguments, or needs their data
            return _UNKNOWN

    def _opaque(self, node: jit.Node) -> None:
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

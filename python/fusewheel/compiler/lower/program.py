"""Writes a region of a graph as a program."""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from fusewheel.compiler.ir.metadata import tensor_of, value_of
from fusewheel.compiler.ir.source import line_of
from fusewheel.compiler.lower.regions import Region, outputs_of
from fusewheel.compiler.lower.sizes import Sizes, bare_symbols, symbols_of
from fusewheel.compiler.lower.steps import dtype_of_number
from fusewheel.engine import Program, ProgramWriter, step_letters


@dataclass(frozen=True)
class Lowered:
    """A region as a program.

    Attributes:
        program: the program.
        inputs: what it is called with: nodes, and numbers that become tensors without dimensions.
        weights: its inputs behind these.
        outputs: the nodes whose values it returns.
        kept: those of them whose second result it returns too, behind all others; in order.
    """

    program: Program
    inputs: list[Node | float]
    weights: list[Node]
    outputs: list[Node]
    kept: list[Node]


def write_program(graph: Graph, region: Region, weights: Container[Node] = ()) -> Lowered:
    """The program of a region.

    Args:
        graph: the graph.
        region: a part of it.
        weights: nodes that are to be the last inputs; default ().

    Raises:
        Inexpressible: if a size in it is computed in a way that programs do not know.
    """
    return _Writer(graph, region, weights).write()


@dataclass
class _Writer:
    graph: Graph
    region: Region
    weights: Container[Node]
    writer: ProgramWriter = field(default_factory=ProgramWriter)
    values: dict[Any, int] = field(default_factory=dict)
    # The result that a node shows in another shape.
    bases: dict[Node, int] = field(default_factory=dict)
    # The second result of a step whose node is the first one.
    seconds: dict[Node, int] = field(default_factory=dict)

    def write(self) -> Lowered:
        nodes, numbers = self._inputs()
        weights = [node for node in nodes if node in self.weights]
        others = [node for node in nodes if node not in self.weights]
        inputs: list[Node | float] = [*others, *numbers, *weights]
        sizes = self.sizes = Sizes(self.writer, inputs)
        for given in inputs:
            if isinstance(given, Node):
                self.values[given] = self._input(_tensor(given), sizes)
            else:
                self.values[_key(given)] = self.writer.input(dtype_of_number(given), (), ())
        for node, call in self.region.steps.items():
            letters = step_letters(call.operator) or ""
            arguments = list(map(self._argument, call.arguments, letters))
            results = self._results(node)
            line = os.path.basename(line_of(node).source)
            self.writer.step(call.operator, arguments, results, line)
        outputs = outputs_of(self.region)
        kept = [node for node in outputs if node in self.seconds]
        returned = [*(self.values[n] for n in outputs), *(self.seconds[n] for n in kept)]
        return Lowered(self.writer.finish(returned), [*others, *numbers], weights, outputs, kept)

    def _inputs(self) -> tuple[list[Node], list[float]]:
        """The nodes that the region reads, and those whose sizes it needs; and its numbers."""
        found: dict[Node, None] = {}
        numbers: dict[tuple[type, str], float] = {}
        for call in self.region.steps.values():
            for argument in _flat(call.arguments):
                if isinstance(argument, Node) and tensor_of(argument) is not None:
                    root = self.region.root(argument)
                    if root not in self.region:
                        found[root] = None
            for argument, letter in zip(
                call.arguments, step_letters(call.operator) or "", strict=True
            ):
                if letter == "T" and not isinstance(argument, Node):
                    numbers[_key(argument)] = argument
        known = {symbol for node in found for symbol, _, _ in bare_symbols(_tensor(node))}
        needed = set().union(*(symbols_of(tensor) for tensor in self._all_tensors(found)))
        for node in self.graph.find_nodes(op="placeholder"):
            tensor = tensor_of(node)
            if tensor is not None and node not in found:
                own = {symbol for symbol, _, _ in bare_symbols(tensor)}
                if own & (needed - known):
                    found[node] = None
                    known |= own
        return list(found), list(numbers.values())

    def _all_tensors(self, inputs: Iterable[Node]) -> Iterable[Tensor]:
        for node in (*inputs, *self.region.steps, *self.region.views):
            value = value_of(node)
            several = value if isinstance(value, (tuple, list)) else [value]
            yield from (tensor for tensor in several if isinstance(tensor, Tensor))

    def _input(self, tensor: Tensor, sizes: Sizes) -> int:
        return self.writer.input(tensor.dtype, sizes.all(tensor.shape), sizes.all(tensor.stride()))

    def _results(self, node: Node) -> list[int | None]:
        value, call = value_of(node), self.region.steps[node]
        if isinstance(value, Tensor):
            if not call.reshaped:
                self.values[node] = self._result(value)
                if call.keeps:
                    self.seconds[node] = self._result(value)
                    return [self.values[node], self.seconds[node]]
                return [self.values[node]]
            shape = _tensor(call.arguments[0]).shape
            dims = self.sizes.all(shape), self.sizes.all(_contiguous(shape))
            self.bases[node] = self.writer.result(value.dtype, *dims)
            self.values[node] = self._view(self.bases[node], value, 0)
            return [self.bases[node]]
        assert isinstance(value, (tuple, list))
        results: list[int | None] = [None] * len(value)
        for item, (step, index) in self.region.items.items():
            if step is node and item.users:
                if results[index] is None:
                    results[index] = self._result(value[index])
                self.values[item] = results[index]  # type: ignore[assignment]
        return results

    def _result(self, tensor: Tensor) -> int:
        sizes = self.sizes
        return self.writer.result(tensor.dtype, sizes.all(tensor.shape), sizes.all(tensor.stride()))

    def _view(self, of: int, tensor: Tensor, offset: Any) -> int:
        sizes = self.sizes
        dims = sizes.all(tensor.shape), sizes.all(_usual_strides(tensor))
        return self.writer.view(of, *dims, sizes.write(offset))

    def _argument(self, argument: Any, letter: str) -> Any:
        if letter == "I" and isinstance(argument, Node):
            argument = value_of(argument)
        if letter in "LI":
            return [self._argument(item, "T" if letter == "L" else "i") for item in argument]
        value = value_of(argument) if isinstance(argument, Node) else argument
        if isinstance(value, Tensor):
            return self._value(argument)
        if letter == "T":
            return self.values[_key(argument)]
        return self.sizes.write(value) if isinstance(value, torch.SymInt) else value

    def _value(self, node: Node) -> int:
        if node not in self.values:
            root = self.region.root(node)
            tensor, base = _tensor(node), _tensor(root)
            offset = tensor.storage_offset() - base.storage_offset()
            base_value = self.bases.get(root, self.values[root])
            self.values[node] = self._view(base_value, tensor, offset)
        return self.values[node]


def _flat(argument: Any) -> Iterable[Any]:
    if isinstance(argument, (tuple, list)):
        for item in argument:
            yield from _flat(item)
    else:
        yield argument


def _key(number: float) -> tuple[type, str]:
    return type(number), repr(number)


def _contiguous(shape: Sequence[Any]) -> list[Any]:
    """The strides of a contiguous tensor of a shape, which may be symbolic."""
    strides, stride = [], 1
    for size in reversed(shape):
        strides.append(stride)
        stride = stride * size
    return strides[::-1]


def _usual_strides(tensor: Tensor) -> list[Any]:
    """The strides, where a size is 1 that of a contiguous tensor: no element lies there.

    With another one PyTorch's `matmul` copies the weight in every call.
    """
    shape, strides = tensor.shape, list(tensor.stride())
    for dim in reversed(range(len(shape))):
        if isinstance(shape[dim], int) and shape[dim] == 1:
            strides[dim] = shape[dim + 1] * strides[dim + 1] if dim + 1 < len(shape) else 1
    return strides


def _tensor(node: Any) -> Tensor:
    tensor = tensor_of(node)
    assert tensor is not None
    return tensor

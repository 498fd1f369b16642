"""Symbolic sizes of a graph as sizes of a program."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from fusewheel.compiler.ir.metadata import tensor_of, value_of
from fusewheel.compiler.ir.purity import is_pure
from fusewheel.engine import Number, ProgramWriter

_TWO_OPERANDS = {
    "Add": "add",
    "Mul": "multiply",
    "FloorDiv": "floor_divide",
    "Mod": "modulo",
    "PythonMod": "modulo",
    "Max": "maximum",
    "Min": "minimum",
}


class Inexpressible(Exception):
    """A size that a program cannot compute."""


def symbols_of(tensor: Tensor) -> set[Any]:
    """The symbols in the sizes, strides and offset of an example tensor."""
    found: set[Any] = set()
    for size in _sizes(tensor):
        if isinstance(size, torch.SymInt):
            found |= size.node.expr.free_symbols
    return found


def _sizes(tensor: Tensor) -> Iterator[Any]:
    yield from tensor.shape
    yield from tensor.stride()
    yield tensor.storage_offset()


def bare_symbols(tensor: Tensor) -> Iterator[tuple[Any, str, int]]:
    """The symbols that are a size or a stride of a tensor: the symbol, which of both, where."""
    for kind, sizes in (("size", tensor.shape), ("stride", tensor.stride())):
        for dim, size in enumerate(sizes):
            if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
                yield size.node.expr, kind, dim


def sizes_in(value: object) -> tuple[Any, ...] | None:
    """The sizes that a value consists of, such as a shape; None if it is something else."""
    items = value if isinstance(value, tuple) else (value,)
    return items if all(isinstance(item, (int, torch.SymInt)) for item in items) else None


def reads_sizes(node: Node, known: Container[Any]) -> bool:
    """Whether a node only reads or computes sizes, from these symbols."""
    names = ("size", "stride", "dim", "numel", "storage_offset")
    if node.op == "call_method":
        reads = node.target in names
    else:
        reads = node.target is getattr or is_pure(node) or is_operator(node.target)
    sizes = sizes_in(value_of(node)) if reads else None
    return sizes is not None and all(
        symbol in known
        for size in sizes
        if isinstance(size, torch.SymInt)
        for symbol in size.node.expr.free_symbols
    )


def is_operator(target: object) -> bool:
    """Whether a call is one of Python's operators."""
    return getattr(target, "__module__", "") == "_operator"


class Sizes:
    """Writes sizes into a program, in which every symbol is a size or stride of an input.

    Args:
        writer: writes the program.
        inputs: those of the program: nodes, and numbers.
    """

    def __init__(self, writer: ProgramWriter, inputs: Iterable[Node | float]) -> None:
        self._writer = writer
        self._symbols: dict[Any, tuple[str, int, int]] = {}
        for index, given in enumerate(inputs):
            if not isinstance(given, Node):
                continue
            tensor = tensor_of(given)
            assert tensor is not None
            for symbol, kind, dim in bare_symbols(tensor):
                self._symbols.setdefault(symbol, (kind, index, dim))

    def write(self, size: Any) -> int | Number:
        """A size, stride or other integer.

        Raises:
            Inexpressible: if it depends on something else than sizes of inputs.
        """
        if isinstance(size, int):
            return size
        if not isinstance(size, torch.SymInt):
            raise Inexpressible(f"{size!r} is no integer")
        return self._expression(size.node.expr)

    def all(self, sizes: Iterable[Any]) -> list[int | Number]:
        """Likewise, for each of several sizes."""
        return [self.write(size) for size in sizes]

    def _expression(self, expression: Any) -> int | Number:
        if expression.is_Integer:
            return int(expression)
        if expression.is_Symbol:
            if expression not in self._symbols:
                raise Inexpressible(f"{expression} is no size of an input")
            return self._writer.number(*self._symbols[expression])
        name = type(expression).__name__
        if name == "Pow" and expression.exp.is_Integer and expression.exp > 0:
            base = self._expression(expression.base)
            return self._chain("multiply", [base] * int(expression.exp))
        if name not in _TWO_OPERANDS:
            raise Inexpressible(f"{expression} is computed in a way that programs do not know")
        return self._chain(_TWO_OPERANDS[name], [self._expression(a) for a in expression.args])

    def _chain(self, kind: str, operands: list[int | Number]) -> int | Number:
        first, *others = operands
        for other in others:
            first = self._writer.number(kind, first, other)
        return first

"""Shape functions, with which TorchScript's symbolic shape analysis infers shapes of operators.

An operator declares the shape of each output as an expression (`Operator.shapes`). This module
turns these into functions over lists of sizes, and registers them once for the process.
"""

from __future__ import annotations

import threading
from functools import cache

import torch

from fusewheel._torch import jit
from fusewheel.dispatch.operator import Operator
from fusewheel.ops import operators

# Functions that the expressions may use. Shape functions return new lists. The analysis unrolls
# loops, also over symbolic sizes.
_HELPERS = """
def copied(x: List[int]) -> List[int]:
    out: List[int] = []
    for size in x:
        out.append(size)
    return out

def rows(x: List[int]) -> List[int]:
    out: List[int] = []
    for i in range(len(x) - 1):
        out.append(x[i])
    return out

def with_last(x: List[int], size: int) -> List[int]:
    out = rows(x)
    out.append(size)
    return out

def when(needed: bool, x: List[int]) -> List[int]:
    return copied(x) if needed else [0]

def broadcast(a: List[int], b: List[int]) -> List[int]:
    out: List[int] = []
    rank = max(len(a), len(b))
    for i in range(rank):
        left, right = len(a) - rank + i, len(b) - rank + i
        first = a[left] if left >= 0 else 1
        second = b[right] if right >= 0 else 1
        if first != second and first != 1 and second != 1:
            raise AssertionError("the shapes do not broadcast")
        out.append(second if first == 1 else first)
    return out
"""
_TYPES = {
    "Tensor": "List[int]",
    "Optional[Tensor]": "Optional[List[int]]",
    "int": "int",
    "float": "float",
    "bool": "bool",
}
_lock = threading.Lock()


def shape_function(operator: Operator) -> str:
    """The TorchScript of an operator's shape function."""
    arguments = ", ".join(
        f"{argument.name}: {_TYPES[str(argument.type)]}"
        for argument in operator.overload._schema.arguments
    )
    results = ", ".join(f"copied({shape})" for shape in operator.shapes)
    count = len(operator.shapes)
    kind = "List[int]" if count == 1 else f"Tuple[{', '.join(['List[int]'] * count)}]"
    return f"def {operator.name}({arguments}) -> {kind}:\n    return {results}\n"


def register_shape_functions() -> None:
    """Register the shape functions of all operators with TorchScript; a second call does nothing.

    TorchScript's shape inference then works through the operators. Operators without outputs have
    no shape function.
    """
    with _lock:
        _register()


@cache
def _register() -> torch.jit.CompilationUnit:
    known = [operator for operator in operators() if operator.shapes]
    unit = torch.jit.CompilationUnit(_HELPERS + "\n".join(map(shape_function, known)))
    for operator in known:
        function = getattr(unit, operator.name)
        jit.inline(function.graph)
        jit.register_shape_function(_call_of(operator), function.graph)
    return unit


def _call_of(operator: Operator) -> jit.Node:
    """A node that calls the operator, because the registry takes a node."""
    schema = operator.overload._schema
    inputs = [f"%{argument.name} : {_ir_type(argument)}" for argument in schema.arguments]
    outputs = [f"%result_{i}" for i in range(len(schema.returns))]
    names = ", ".join(f"%{argument.name}" for argument in schema.arguments)
    graph = jit.parsed(
        f"graph({', '.join(inputs)}):\n"
        f"  {', '.join(f'{output} : Tensor' for output in outputs)}"
        f" = fusewheel::{operator.name}({names})\n"
        f"  return ({', '.join(outputs)})"
    )
    _graphs.append(graph)  # a node does not keep its graph alive
    return next(node for node in graph.nodes() if node.kind() == f"fusewheel::{operator.name}")


_graphs: list[jit.Graph] = []


def _ir_type(argument: torch.Argument) -> str:
    return str(argument.type).replace("Optional[Tensor]", "Tensor?")

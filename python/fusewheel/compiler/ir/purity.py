"""Which nodes only compute a value from their arguments."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping

import torch
from torch.fx import Node

from fusewheel._torch.builtins import note_use
from fusewheel.compiler.ir.canonical import view
from fusewheel.compiler.ir.effects import Effects
from fusewheel.compiler.ir.metadata import storage_of, tensor_of, value_of

# fmt: off
_NAMES = (
    "tensor", "arange", "zeros", "ones", "full", "zeros_like", "ones_like", "full_like",
    "cos", "sin", "exp", "log", "abs", "floor", "ceil", "where", "outer", "masked_fill",
    "tril", "triu", "cumsum", "embedding", "eq", "ne", "lt", "le", "gt", "ge", "isin",
    "logical_and", "logical_or", "logical_not", "bitwise_and", "bitwise_or", "bitwise_not",
    "minimum", "maximum", "clamp", "sym_sum", "sym_max", "sym_min",
)
# fmt: on
_FUNCTIONS = frozenset(
    [getattr(torch, name) for name in _NAMES if hasattr(torch, name)]
    + [getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge", "and_", "or_")]
    + ([note_use] if note_use else [])
)
_METHODS = frozenset(_NAMES) | {"new_zeros", "new_ones", "new_full", "bool", "int", "long", "numel"}


def is_pure(node: Node) -> bool:
    """Whether a node neither writes to memory nor draws random numbers; False if not known."""
    if "out" in node.kwargs:
        return False
    if node.op == "call_function" and node.target in _FUNCTIONS:
        return True
    if node.op == "call_method" and node.target in _METHODS:
        return True
    if node.target is operator.getitem:
        return True
    found = view(node)
    if found is None or found.inplace:
        return False
    return not found.attrs.get("dropout_p")


def unwritten(effects: Effects, nodes: Iterable[Node], first: Node, last: Node | None) -> bool:
    """Whether nothing writes to the memory of `nodes` after `first` and before `last`."""
    return effects.conflicting(nodes, first, last, frozenset()) is None


def memory_of(nodes: Iterable[Node]) -> set[int | None]:
    """Keys of the memory of these values; None is among them if some memory is not known."""
    found: set[int | None] = set()
    for node in nodes:
        tensor = tensor_of(node)
        if tensor is not None:
            found.add(storage_of(tensor))
        elif not isinstance(value_of(node), (int, float, torch.SymInt, torch.SymFloat)):
            found.add(None)
    return found


def escapes(node: Node, results: set[int | None]) -> bool:
    """Whether a value shares memory with `results`, so that the caller could write to it."""
    own = memory_of([node])
    return None in own or None in results or not own.isdisjoint(results)


def key_of(argument: object) -> object:
    """A key that is equal for two arguments only if they are the same; 1, 1.0 and True differ.

    Raises:
        TypeError: if that cannot be decided for an argument.
    """
    if isinstance(argument, Node):
        return argument
    if isinstance(argument, (tuple, list)):
        return type(argument), tuple(map(key_of, argument))
    if isinstance(argument, slice):
        return slice, *map(key_of, (argument.start, argument.stop, argument.step))
    if isinstance(argument, Mapping):
        return dict, tuple((name, key_of(value)) for name, value in argument.items())
    hash(argument)
    return type(argument), repr(argument) if isinstance(argument, float) else argument

"""Which nodes compute their value from their arguments and do nothing else."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping

import torch
from torch.fx import Node

from ..canonical import view
from ..effects import Effects
from ..metadata import storage_of, tensor_of, value_of

# fmt: off
_NAMES = (
    "tensor", "arange", "zeros", "ones", "full", "zeros_like", "ones_like", "full_like",
    "cos", "sin", "exp", "log", "abs", "floor", "ceil", "where", "outer", "masked_fill",
    "tril", "triu", "cumsum", "embedding", "eq", "ne", "lt", "le", "gt", "ge", "isin",
    "logical_and", "logical_or", "logical_not", "bitwise_and", "bitwise_or", "bitwise_not",
    "minimum", "maximum", "clamp",
)
# fmt: on
_FUNCTIONS = frozenset(
    [getattr(torch, name) for name in _NAMES if hasattr(torch, name)]
    + [getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge", "and_", "or_")]
    # Counts the uses of a feature, once for a process; Dynamo captures it.
    + [torch._C._log_api_usage_once]
)
_METHODS = frozenset(_NAMES) | {"new_zeros", "new_ones", "new_full", "bool", "int", "long"}


def is_pure(node: Node) -> bool:
    """Whether a node neither writes anything nor draws random numbers; False where unknown."""
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
    """Keys of the memory that values lie in; None among them for memory that is not known."""
    found: set[int | None] = set()
    for node in nodes:
        tensor = tensor_of(node)
        if tensor is not None:
            found.add(storage_of(tensor))
        elif not isinstance(value_of(node), (int, float, torch.SymInt, torch.SymFloat)):
            found.add(None)
    return found


def escapes(node: Node, results: set[int | None]) -> bool:
    """Whether the caller could write to a value that lies in the memory of `results`."""
    own = memory_of([node])
    return None in own or None in results or not own.isdisjoint(results)


def key_of(argument: object) -> object:
    """What two arguments have in common exactly if they are the same; 1, 1.0 and True are not.

    Raises:
        TypeError: if that cannot be told.
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

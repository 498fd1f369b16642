"""One canonical form for the many spellings of an operation in an FX graph.

Dynamo writes ``x.mul(y)``, ``torch.mul(x, y)`` and ``x * y`` as three different nodes, and export
writes a fourth. `view` returns ``View("mul", (x, y))`` for all of them, so that a matcher is
written once. A call with an argument that is not covered (``torch.add(x, y, alpha=2)``) has no
view, and so is never matched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from torch.fx import Node

from fusewheel._torch.overloads import OpOverload
from fusewheel.compiler.ir.metadata import dtype_of, tensor_of

_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class View:
    """The canonical form of one node.

    Attributes:
        node: the node itself.
        op: canonical name of the operation, such as ``mul``, ``cast`` or ``slice``.
        args: the operands in canonical order; nodes or Python constants.
        attrs: everything else, normalised (dimensions are non-negative, slices have bounds).
        inplace: whether the node writes its result over ``args[0]``.
    """

    node: Node
    op: str
    args: tuple[Any, ...]
    attrs: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    inplace: bool = False


Build = Callable[[Node, dict[str, Any]], View | None]


@dataclass(frozen=True)
class Spelling:
    """How a function or method spells an operation: its parameters, and how they become a view."""

    op: str
    parameters: tuple[str, ...]
    defaults: Mapping[str, Any]
    build: Build | None
    inplace: bool


_FUNCTIONS: dict[Any, Spelling] = {}
_METHODS: dict[str, Spelling] = {}
# ATen, torch and the array API name the same parameter differently.
_RENAMED = {"self": "input", "axis": "dim", "dims": "dim", "exponent": "other", "arrays": "tensors"}


def spell(
    op: str,
    parameters: str,
    *,
    functions: tuple[Any, ...] = (),
    methods: str = "",
    defaults: Mapping[str, Any] = _NOTHING,
    build: Build | None = None,
    inplace: bool = False,
) -> None:
    """Declare spellings of a canonical operation.

    Args:
        op: the canonical name.
        parameters: names of the parameters in call order, separated by blanks; those without a
            default are required.
        functions: ``call_function`` targets; a missing attribute is passed as None and skipped.
        methods: names of tensor methods, separated by blanks.
        defaults: defaults of the optional parameters.
        build: turns bound arguments into a view, or into None. By default the required
            parameters become ``args``, and every optional one must have its default value.
        inplace: whether these spellings overwrite their first argument.

    Raises:
        ValueError: if a function or a method has a spelling already.
    """
    spelling = Spelling(op, tuple(parameters.split()), defaults, build, inplace)
    for function in functions:
        if function is not None:
            _add(_FUNCTIONS, function, spelling)
            if isinstance(function, OpOverload):  # torch.ops.aten.mul, unresolved
                _FUNCTIONS.setdefault(function.overloadpacket, spelling)  # the first overload's
    for method in methods.split():
        _add(_METHODS, method, spelling)


def _add(table: dict[Any, Spelling], key: Any, spelling: Spelling) -> None:
    if table.setdefault(key, spelling) is not spelling:
        raise ValueError(f"spell: {key} is spelled already, as {table[key].op!r}")


def operations() -> frozenset[str]:
    """The names of all canonical operations."""
    return frozenset(spelling.op for spelling in (*_FUNCTIONS.values(), *_METHODS.values()))


def view(node: object) -> View | None:
    """The canonical view of a node; None for a constant and for a node without one."""
    if not isinstance(node, Node):
        return None
    if node.op == "call_function":
        spelling = _FUNCTIONS.get(node.target)
    elif node.op == "call_method":
        spelling = _METHODS.get(str(node.target))
    else:
        return None
    bound = None if spelling is None else _bind(node, spelling)
    if spelling is None or bound is None:
        return None
    if spelling.build is not None:
        return spelling.build(node, bound)
    if any(bound[name] != default for name, default in spelling.defaults.items()):
        return None
    operands = tuple(bound[name] for name in spelling.parameters if name not in spelling.defaults)
    return View(node, spelling.op, operands, inplace=spelling.inplace)


def _bind(node: Node, spelling: Spelling) -> dict[str, Any] | None:
    """Arguments of a call by canonical parameter name; None if they do not fit the spelling."""
    if len(node.args) > len(spelling.parameters):
        return None
    bound: dict[str, Any] = dict(zip(spelling.parameters, node.args, strict=False))
    for key, argument in node.kwargs.items():
        name = key if key in spelling.parameters else _RENAMED.get(key, key)
        if name not in spelling.parameters or name in bound:
            return None
        bound[name] = argument
    for name in spelling.parameters:
        if name not in bound:
            if name not in spelling.defaults:
                return None
            bound[name] = spelling.defaults[name]
    return bound


def is_op(node: object, op: str) -> bool:
    """Whether a node is the canonical operation `op`, computed out of place."""
    found = view(node)
    return found is not None and found.op == op and not found.inplace


def operands(node: object, op: str) -> tuple[Any, ...] | None:
    """The operands of a node if it is the out-of-place operation `op`, else None."""
    found = view(node)
    return found.args if found is not None and found.op == op and not found.inplace else None


def split_operands(node: object, op: str, one: object) -> object | None:
    """The other operand of a two-operand commutative node of which `one` is an operand."""
    pair = operands(node, op)
    if pair is None or len(pair) != 2:
        return None
    if pair[0] is one:
        return pair[1] if pair[1] is not one else None
    return pair[0] if pair[1] is one else None


def squared(node: object) -> Node | None:
    """The node of which `node` is the square (``x.pow(2)``, ``x ** 2``, ``x * x``, ``square``)."""
    found = view(node)
    if found is None or found.inplace:
        return None
    base = found.args[0]
    is_square = (
        found.op == "square"
        or (found.op == "pow" and not isinstance(found.args[1], Node) and found.args[1] == 2)
        or (found.op == "mul" and found.args[1] is base)
    )
    return base if is_square and isinstance(base, Node) else None


def widened_from(node: Node) -> list[Node]:
    """`node`, followed by the values that it is a lossless cast of, nearest first.

    A cast to the same or a wider dtype keeps every value. So what is computed from one node of this
    chain can be computed from any other.
    """
    chain = [node]
    while (inner := operands(chain[-1], "cast")) is not None:
        wide, narrow = dtype_of(chain[-1]), dtype_of(inner[0])
        if wide is None or narrow is None or not narrow.is_floating_point:
            break
        if torch.promote_types(narrow, wide) != wide:
            break
        chain.append(inner[0])
    return chain


def rank_of(node: object) -> int | None:
    """The number of dimensions of a node's tensor."""
    tensor = tensor_of(node)
    return None if tensor is None else tensor.dim()


def dimension(dim: object, rank: int) -> int | None:
    """A dimension counted from the first; None if `dim` is not a number or out of range."""
    if not isinstance(dim, int) or not -rank <= dim < rank:
        return None
    return dim % rank

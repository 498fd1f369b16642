"""GELU: the function, and the formulas that models write for it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch.fx import Node

from fusewheel.compiler.ir.canonical import view
from fusewheel.compiler.ir.metadata import dtype_of, tensor_of
from fusewheel.compiler.ir.pattern import (
    Builder,
    Context,
    Match,
    Pattern,
    PaysAbove,
    Refuse,
    require,
    users_of,
)
from fusewheel.compiler.read.polynomial import Polynomial, between, equal, polynomial, terms
from fusewheel.compiler.read.precision import COMPUTED


@dataclass(frozen=True)
class Gelu:
    """``gelu(x)``.

    Attributes:
        x: the argument.
        tanh: whether it is the approximation with tanh.
        root: the node with the result.
        interior: the nodes between the two.
    """

    x: Node
    tanh: bool
    root: Node
    interior: frozenset[Node] = frozenset()


@dataclass(frozen=True)
class _Form:
    """A formula of gelu with a function f: the argument of f, and a polynomial of x and f."""

    tanh: bool
    argument: Polynomial
    result: Polynomial


_BOTH: Polynomial = {(1, 0): 0.5, (1, 1): 0.5}  # x * (1 + f) / 2
_TANH: Polynomial = {(1,): math.sqrt(2 / math.pi), (3,): 0.044715 * math.sqrt(2 / math.pi)}
_FORMS = {
    "erf": _Form(False, {(1,): math.sqrt(0.5)}, _BOTH),
    "tanh": _Form(True, _TANH, _BOTH),
    # (1 + tanh(z)) / 2 is sigmoid(2 * z)
    "sigmoid": _Form(True, {powers: 2 * factor for powers, factor in _TANH.items()}, {(1, 1): 1.0}),
}
_SILU: Polynomial = {(1,): 1.0}


def find_gelu(node: Node) -> Gelu | None:
    """The gelu around an anchor; None if the anchor belongs to something else.

    Raises:
        Refuse: if it is the formula of gelu with other constants.
    """
    found = view(node)
    if found is None or found.inplace or not isinstance(found.args[0], Node):
        return None
    if found.op == "gelu":
        return Gelu(found.args[0], found.attrs["tanh"], node)
    form = _FORMS[found.op]
    for x in terms(found.args[0]):
        argument = polynomial(found.args[0], x)
        root = None if argument is None else _root(node, x, form)
        if argument is None or root is None:
            continue
        if equal(argument, form.argument, dtype_of(x)):
            return Gelu(x, form.tanh, root, between(x, root))
        if found.op == "sigmoid" and argument == _SILU:
            return None
        raise Refuse(f"{found.op} is taken of {_text(argument)}, not {_text(form.argument)}")
    return None


def _root(function: Node, x: Node, form: _Form) -> Node | None:
    """The node that computes gelu in this form, from x and the function's value."""
    value = function
    while len(users := users_of(value)) == 1:
        value = users[0]
        result = polynomial(value, x, function)
        if result is None:
            break
        if equal(result, form.result, dtype_of(x)):
            return value
    return None


def _text(argument: Polynomial) -> str:
    terms = (f"{factor:g} * x ** {powers[0]}" for powers, factor in sorted(argument.items()))
    return " + ".join(terms).replace(" ** 1", "")


def _match(context: Context, node: Node) -> Match | None:
    gelu = find_gelu(node)
    if gelu is None:
        return None
    dtype = dtype_of(gelu.x)
    require(dtype in COMPUTED, f"{dtype} is not supported")

    def build(builder: Builder) -> list[Node]:
        return [builder.call(PATTERN.overload(), gelu.x, gelu.tanh)]

    return Match((gelu.x,), (gelu.root,), gelu.interior, build)


def _cost(match: Match) -> str | None:
    tensor = tensor_of(match.roots[0])
    if tensor is None or tensor.device.type != "cpu":
        return "it is only replaced on a CPU"
    return None


PATTERN = Pattern(
    name="gelu",
    operator="fusewheel::gelu",
    anchors=frozenset({"gelu", *_FORMS}),
    match=_match,
    order=2,
    cost=_cost,
    pays_above=PaysAbove(inductor=4608, inductor_training=4608),
)

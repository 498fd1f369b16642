"""LayerNorm: ``(x - mean) / sqrt(var + eps) * weight + bias``, as a function or written out."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch.fx import Node

from fusewheel.compiler.ir.canonical import (
    View,
    operands,
    rank_of,
    split_operands,
    squared,
    view,
    widened_from,
)
from fusewheel.compiler.ir.metadata import dtype_of, same_sizes, shape_of
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
from fusewheel.compiler.read.inverse_root import inverse_root
from fusewheel.compiler.read.precision import COMPUTED, in_dtype, number, same_value


@dataclass(frozen=True)
class LayerNorm:
    """A layer norm in a graph, as arguments of the operator.

    Attributes:
        x: the input.
        weight: the weight; None for ones.
        bias: the bias; None for zeros.
        eps: epsilon.
        root: the result.
        interior: see `Match`.
        absorbed: see `Match`.
    """

    x: Node
    weight: Node | None
    bias: Node | None
    eps: float
    root: Node
    interior: frozenset[Node]
    absorbed: frozenset[Node] = frozenset()

    @property
    def parameters(self) -> tuple[Node, ...]:
        """The weight and the bias, if they exist."""
        return tuple(node for node in (self.weight, self.bias) if node is not None)


# The operator computes float64 in float64 and everything else in float32.
_FULL = frozenset({torch.float32, torch.float64})


def find(node: Node) -> LayerNorm | None:
    """The norm at an anchor; None if the anchor belongs to something else.

    Raises:
        Refuse: if it resembles a norm but cannot be proven to be one.
    """
    found = view(node)
    if found is None:
        return None
    start = _of_function(found) if found.op == "layer_norm" else _written_out(node)
    spelled, norm = start, None
    while spelled is not None:  # until there is a rounding that the operator does not have
        norm = spelled.norm() or norm
        spelled = _longer(spelled)
    if start is not None and norm is None:
        named = [("input", start.x), ("weight", start.weight), ("bias", start.bias)]
        dtypes = [f"the {name} is {dtype_of(node)}" for name, node in named if node is not None]
        raise Refuse(", ".join(dtypes))
    return norm


def _match(context: Context, node: Node) -> Match | None:
    norm = find(node)
    if norm is None:
        return None

    def build(builder: Builder) -> list[Node]:
        arguments = norm.x, norm.weight, norm.bias, norm.eps
        return [builder.item(builder.call(PATTERN.overload(), *arguments), 0)]

    return Match((norm.x, *norm.parameters), (norm.root,), norm.interior, build, norm.absorbed)


@dataclass(frozen=True)
class _Spelled:
    """A layer norm up to `root`, with the casts that the graph has.

    Attributes:
        x: the input, in the dtype of the statistics.
        others: other nodes with the same value.
    """

    x: Node
    others: tuple[Node, ...]
    eps: float
    root: Node
    interior: frozenset[Node]
    weight: Node | None = None
    bias: Node | None = None

    def norm(self) -> LayerNorm | None:
        """The norm in the dtype of the root; None if an operand never has that dtype."""
        dtype, full = dtype_of(self.root), dtype_of(self.x)
        if dtype not in COMPUTED or (dtype != full and full != torch.float32):
            return None
        given = [node for node in (self.x, self.weight, self.bias) if node is not None]
        plain = {node: found for node in given if (found := in_dtype(node, dtype)) is not None}
        if len(plain) != len(set(given)):
            return None
        x, casts = plain[self.x]
        weight = None if self.weight is None else plain[self.weight][0]
        bias = None if self.bias is None else plain[self.bias][0]
        absorbed = casts.union(*(found for _, found in plain.values()))
        for other in self.others:
            chain = widened_from(other)
            absorbed |= frozenset(chain[: chain.index(x)]) if x in chain else frozenset()
        return LayerNorm(x, weight, bias, self.eps, self.root, self.interior, absorbed)


def _longer(spelled: _Spelled) -> _Spelled | None:
    """The norm with the weight, bias or cast that comes next; None if something else comes."""
    value, full = spelled.root, dtype_of(spelled.x)
    users = users_of(value)
    if len(users) != 1 or dtype_of(value) != full or full not in _FULL:
        return None
    longer = replace(spelled, root=users[0], interior=spelled.interior | {value})
    if operands(users[0], "cast") is not None:
        return longer
    if spelled.bias is not None:
        return None
    weight, bias = (_parameter(spelled, users[0], op) for op in ("mul", "add"))
    if weight is not None and spelled.weight is None:
        return replace(longer, weight=weight)
    return None if bias is None else replace(longer, bias=bias)


def _parameter(spelled: _Spelled, node: Node, op: str) -> Node | None:
    """The other operand of a node, if it has one value for every column."""
    other = split_operands(node, op, spelled.root)
    fits = same_sizes(shape_of(other), (shape_of(spelled.x) or ())[-1:])
    return other if isinstance(other, Node) and fits else None


def _of_function(found: View) -> _Spelled:
    """The norm of a call of `torch.nn.functional.layer_norm`."""
    x, weight, bias = found.args
    eps = number(found.attrs["eps"])
    require(found.attrs["rank"] == 1, "more than the last dimension is normalised")
    if eps is None:
        raise Refuse("epsilon is not a Python number")
    return _Spelled(x, (), eps, found.node, frozenset(), weight, bias)


@dataclass(frozen=True)
class _Centred:
    """``x - mean(x)`` over the last dimension; `inputs` are both spellings of x."""

    node: Node
    mean: Node
    inputs: tuple[Node, Node]


def _centred(node: object) -> _Centred | None:
    found = view(node)
    if found is None or found.op != "sub" or found.inplace:
        return None
    value, mean = found.args[0], view(found.args[1])
    if mean is None or mean.op != "mean" or not _over_last(mean):
        return None
    inputs = mean.args[0], value
    return _Centred(found.node, mean.node, inputs) if same_value(*inputs) else None


def _over_last(statistic: View) -> bool:
    last = (rank_of(statistic.args[0]) or 0) - 1
    return statistic.attrs["dims"] == (last,) and bool(statistic.attrs["keepdim"])


def _written_out(node: Node) -> _Spelled | None:
    """The normalised value around the inverse root of a variance."""
    root = inverse_root(node, "mean", "var")
    if root is None:
        return None
    variance, parts, interior = root.statistic, [], set()
    inputs = [variance.args[0]]
    if variance.op == "var":
        require(variance.attrs["correction"] == 0, "the variance is not divided by the size")
    else:
        below = _centred(squared(variance.args[0]))
        if below is None:  # an RMSNorm
            return None
        parts, inputs, interior = [below], [], {variance.args[0]}
    require(_over_last(variance), "the variance is not over the last dimension alone, with keepdim")
    product, value, between = root.scaled()
    above = _centred(value)
    if above is None:
        raise Refuse(
            "the normalised tensor is not the input minus its mean over the last dimension"
        )
    parts.append(above)
    inputs += [node for part in parts for node in part.inputs]
    x = above.inputs[0]
    require(
        all(same_value(x, other) for other in inputs),
        "the variance is of another tensor than the normalised one",
    )
    nodes = {node for part in parts for node in (part.node, part.mean)}
    dtypes = {dtype_of(statistic) for statistic in (variance.node, *nodes)}
    require(len(dtypes) == 1, "the statistics have different dtypes")
    require(dtypes <= _FULL, f"the statistics are computed in {dtype_of(x)}")
    interior |= between | nodes
    return _Spelled(x, tuple(inputs), root.eps, product, frozenset(interior))


PATTERN = Pattern(
    name="layer_norm",
    operator="fusewheel::layer_norm",
    anchors=frozenset({"rsqrt", "pow", "sqrt", "layer_norm"}),
    match=_match,
    order=-1,
    pays_above=PaysAbove(inductor=4608, inductor_training=4608),
)

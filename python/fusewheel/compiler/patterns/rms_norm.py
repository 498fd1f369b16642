"""RMSNorm: ``x * rsqrt(mean(x ** 2) + eps) * weight``, in the three ways that models round it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import torch
from torch.fx import Node

from fusewheel.compiler.ir.canonical import (
    is_op,
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
    sole_user,
    users_of,
)
from fusewheel.compiler.read.inverse_root import inverse_root
from fusewheel.compiler.read.precision import COMPUTED, in_dtype, number, same_value


class Cast(IntEnum):
    """Where the operator rounds; the numbers are part of its schema."""

    LLAMA = 0  # normalise, round, multiply by the weight
    GEMMA = 1  # multiply by 1 + weight, round
    TORCH = 2  # multiply by the weight, round


@dataclass(frozen=True)
class RmsNorm:
    """An RMSNorm in a graph, as arguments of the operator.

    Attributes:
        x: the input.
        weight: the weight.
        eps: epsilon.
        cast: where it rounds.
        root: the result.
        interior: see `Match`.
        absorbed: see `Match`.
    """

    x: Node
    weight: Node
    eps: float
    cast: Cast
    root: Node
    interior: frozenset[Node] = frozenset()
    absorbed: frozenset[Node] = frozenset()


@dataclass
class _Normalised:
    """``x * rsqrt(mean(x ** 2) + eps)``, in the dtype of the statistics."""

    node: Node
    x: Node
    other_x: Node
    eps: float
    interior: set[Node]

    @property
    def dtype(self) -> torch.dtype | None:
        """The dtype of the statistics."""
        return dtype_of(self.x)


# The operator computes float64 in float64 and everything else in float32.
_FULL = (torch.float32, torch.float64)


def find(node: Node) -> RmsNorm | None:
    """The norm at an anchor; None if the anchor belongs to something else.

    Raises:
        Refuse: if it resembles a norm but cannot be proven to be one.
    """
    if is_op(node, "rms_norm"):
        return _of_function(node)
    normalised = _normalised(node)
    return None if normalised is None else _with_weight(normalised)


def _match(context: Context, node: Node) -> Match | None:
    norm = find(node)
    if norm is None:
        return None

    def build(builder: Builder) -> list[Node]:
        arguments = norm.x, norm.weight, norm.eps, int(norm.cast)
        return [builder.item(builder.call(PATTERN.overload(), *arguments), 0)]

    return Match((norm.x, norm.weight), (norm.root,), norm.interior, build, norm.absorbed)


def _normalised(node: Node) -> _Normalised | None:
    """The normalised value around an anchor; None if the anchor belongs to something else."""
    root = inverse_root(node, "mean")
    if root is None:
        require(not is_op(node, "rsqrt"), "rsqrt is not taken of a mean of squares plus epsilon")
        return None
    mean = root.statistic
    x = squared(mean.args[0])
    if x is None:
        raise Refuse("the mean is not taken of squares")
    rank = rank_of(x) or 0
    require(
        mean.attrs["dims"] == (rank - 1,) and bool(mean.attrs["keepdim"]),
        "the mean is not over the last dimension alone, with keepdim",
    )
    result, other_x, interior = root.scaled()
    if not isinstance(other_x, Node) or not same_value(x, other_x):
        raise Refuse("the mean of squares is of another tensor than the normalised one")
    dtype = dtype_of(x)
    # T5 multiplies the input in its own dtype, and the product promotes it.
    require(dtype == dtype_of(result), "the statistics have another dtype than the product")
    require(dtype in _FULL, f"the statistics are computed in {dtype}")
    return _Normalised(result, x, other_x, root.eps, interior | {mean.args[0]})


def _with_weight(normalised: _Normalised) -> RmsNorm:
    """Follow the normalised value to its product with the weight; find out how it is rounded."""
    value, interior = normalised.node, set(normalised.interior)
    full, rounded = normalised.dtype, None
    while True:
        interior.add(value)
        user = sole_user(value, "the normalised value")
        if operands(user, "cast") is None:
            break
        require(
            rounded in (None, full) or rounded == dtype_of(user),
            "the normalised value is cast twice",
        )
        value, rounded = user, dtype_of(user)
    weight = split_operands(user, "mul", value)
    hidden = (shape_of(normalised.x) or ())[-1:]
    if not isinstance(weight, Node) or not same_sizes(shape_of(weight), hidden):
        raise Refuse(
            "the normalised value is not multiplied by a weight of the last dimension's size"
        )
    interior |= {user}
    product = _Product(normalised, weight, full, rounded, interior)
    users = users_of(user)
    if rounded in (None, full) and len(users) == 1 and _rounds(users[0], full):
        # It is rounded after the weight; input and weight must have that dtype too.
        norm = product.norm(users[0])
        if norm is not None:
            return norm
    norm = product.norm(user)
    if norm is None:
        source = dtype_of(widened_from(normalised.x)[-1])
        dtypes = f"the weight {dtype_of(weight)}, the result {dtype_of(user)}"
        raise Refuse(f"the input is {source}, {dtypes}")
    return norm


@dataclass
class _Product:
    """The normalised value times the weight."""

    normalised: _Normalised
    weight: Node
    full: torch.dtype | None
    rounded: torch.dtype | None
    interior: set[Node]

    def norm(self, root: Node) -> RmsNorm | None:
        """The norm that ends in `root`; None if the dtypes do not fit the operator."""
        dtype = dtype_of(root)
        if self.full != torch.float32 and dtype != self.full:
            return None
        x = in_dtype(self.normalised.x, dtype)
        other_x = in_dtype(self.normalised.other_x, dtype)
        idle = self.rounded == self.full
        weight = _weight(self.weight, dtype, None if idle else self.rounded, idle)
        if x is None or other_x is None or x[0] is not other_x[0] or weight is None:
            return None
        eps, cast = self.normalised.eps, weight.cast
        absorbed = x[1] | other_x[1] | weight.absorbed
        interior = frozenset(self.interior - {root})
        return RmsNorm(x[0], weight.node, eps, cast, root, interior, absorbed)


def _rounds(node: Node, full: torch.dtype | None) -> bool:
    """Whether a node is a cast to a supported dtype narrower than that of the statistics."""
    dtype = dtype_of(node)
    return operands(node, "cast") is not None and dtype in COMPUTED and dtype != full


@dataclass
class _Weight:
    node: Node
    cast: Cast
    absorbed: frozenset[Node]


def _weight(
    weight: Node, dtype: torch.dtype | None, rounded: torch.dtype | None, idle_cast: bool
) -> _Weight | None:
    """The weight in the operator's dtype, and how the product rounds; None if it has no weight."""
    if rounded is not None:
        fits = rounded == dtype == dtype_of(weight)
        return _Weight(weight, Cast.LLAMA, frozenset()) if fits else None
    pair = operands(weight, "add") or ()
    if any(not isinstance(a, Node) and a == 1 for a in pair):
        inner = next((a for a in pair if isinstance(a, Node)), None)
        plain = None if inner is None else in_dtype(inner, dtype)
        if plain is not None:
            return _Weight(plain[0], Cast.GEMMA, plain[1] | {weight})
    plain = in_dtype(weight, dtype)
    if plain is None:
        return None
    # Without rounding both are equal; a cast before the weight says which one was meant.
    return _Weight(plain[0], Cast.LLAMA if idle_cast else Cast.TORCH, plain[1])


def _of_function(node: Node) -> RmsNorm:
    """The norm of a call of `torch.nn.functional.rms_norm`."""
    found = view(node)
    assert found is not None
    x, weight = found.args
    if not isinstance(weight, Node):
        raise Refuse("there is no weight")
    require(found.attrs["rank"] == 1, "more than the last dimension is normalised")
    dtype = dtype_of(x)
    require(dtype == dtype_of(weight), f"the weight is {dtype_of(weight)}, the input {dtype}")
    require(dtype in COMPUTED, f"{dtype} is not supported")
    eps = number(found.attrs["eps"])
    if found.attrs["eps"] is None:
        require(dtype == torch.float32, f"PyTorch chooses the default epsilon for {dtype}")
        eps = torch.finfo(torch.float32).eps
    if eps is None:
        raise Refuse("epsilon is not a Python number")
    return RmsNorm(x, weight, eps, Cast.TORCH, node)


PATTERN = Pattern(
    name="rms_norm",
    operator="fusewheel::rms_norm",
    anchors=frozenset({"rsqrt", "pow", "sqrt", "rms_norm"}),
    match=_match,
    pays_above=PaysAbove(inductor=4608, inductor_training=4608),
)

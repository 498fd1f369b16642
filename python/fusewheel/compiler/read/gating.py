"""Gated activations, ``activation(gate) * up``, with gate and up in two tensors or in one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch.fx import Node

from fusewheel.compiler.ir.canonical import View, rank_of, split_operands, view
from fusewheel.compiler.ir.metadata import dtype_of, same_sizes, shape_of
from fusewheel.compiler.ir.pattern import Builder, Match, Pattern, Refuse, require, sole_user
from fusewheel.compiler.read.precision import COMPUTED


@dataclass(frozen=True)
class Gated:
    """``activation(gate) * up``.

    Attributes:
        gate: the argument of the activation.
        up: the other factor.
        product: the result.
        interior: the nodes in between.
        options: the operator's arguments besides its tensors.
    """

    gate: Node
    up: Node
    product: Node
    interior: frozenset[Node]
    options: tuple[bool, ...] = ()

    def match(self, pattern: Pattern) -> Match:
        """The match of an operator that takes gate and up."""

        def build(builder: Builder) -> list[Node]:
            return [builder.call(pattern.overload(), self.gate, self.up, *self.options)]

        return Match((self.gate, self.up), (self.product,), self.interior, build)

    def match_packed(self, pattern: Pattern) -> Match | None:
        """The match of an operator that takes ``[..., gate | up]``; None if gate and up are not in
        one tensor.

        Raises:
            Refuse: if they are the halves of one tensor in the other order.
        """
        halves = view(self.gate), view(self.up)
        packed = _joint(*halves)
        if packed is None:
            return None
        require(_bounds(halves[0])[0] == 0, "the halves of the packed tensor are [up | gate]")

        def build(builder: Builder) -> list[Node]:
            return [builder.call(pattern.overload(), packed, *self.options)]

        # A half with other users stays. If neither half has one, the split vanishes too.
        views = {self.gate, self.up}
        views |= {node for half in views for node in half.all_input_nodes} - {packed}
        return Match((packed,), (self.product,), self.interior, build, frozenset(views))


def gated(name: str, value: Node, gate: Node, interior: Iterable[Node], *options: bool) -> Gated:
    """The product of `value`, the activation of `gate`, and another tensor.

    Args:
        name: the activation's name in reasons.
        value: the node with the activation's result.
        gate: the argument of the activation.
        interior: the nodes that compute the activation, without `value`.
        options: see `Gated`.

    Raises:
        Refuse: if `value` is used for something else, or the operator does not take the operands.
    """
    product = sole_user(value, f"{name}(gate)")
    found = view(product)
    alone = f"{name} is not multiplied by another tensor"
    if found is None or found.op != "mul":
        raise Refuse(alone)
    require(not found.inplace, "the product is written in place")
    up = split_operands(product, "mul", value)
    if not isinstance(up, Node) or shape_of(up) is None:
        raise Refuse(alone)
    require(same_sizes(shape_of(gate), shape_of(up)), "gate and up have different shapes")
    dtypes = dtype_of(gate), dtype_of(up)
    require(dtypes[0] == dtypes[1], f"gate is {dtypes[0]} and up is {dtypes[1]}")
    require(dtypes[0] in COMPUTED, f"{dtypes[0]} is not supported")
    return Gated(gate, up, product, frozenset(interior) | {value}, options)


def _joint(gate: View | None, up: View | None) -> Node | None:
    """The tensor of whose last dimension two slices are the halves."""
    if gate is None or up is None or gate.op != "slice" or up.op != "slice":
        return None
    packed = gate.args[0]
    last = (rank_of(packed) or 0) - 1
    size = (shape_of(packed) or (0,))[last]
    if up.args[0] is not packed or gate.attrs["dim"] != last or up.attrs["dim"] != last:
        return None
    # They have one shape.
    halves = [(0, size // 2, 1), (size // 2, size, 1)]
    return packed if sorted((_bounds(gate), _bounds(up))) == halves else None


def _bounds(half: View | None) -> tuple[int, int, int]:
    assert half is not None
    return half.attrs["start"], half.attrs["stop"], half.attrs["step"]

"""Rotary embedding of queries and keys: ``x * cos + rotate(x) * sin`` for both of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.fx import Node

from fusewheel.compiler.ir.canonical import operands, rank_of, split_operands, view, widened_from
from fusewheel.compiler.ir.metadata import dtype_of, same_size, same_sizes, shape_of
from fusewheel.compiler.ir.pattern import (
    Builder,
    Context,
    Match,
    Pattern,
    PaysAbove,
    Refuse,
    require,
    sole_user,
)
from fusewheel.compiler.read.precision import COMPUTED, same_value


@dataclass(frozen=True)
class _Table:
    """A factor cos or sin: the node that is multiplied, and the node with the table."""

    factor: Node
    base: Node


@dataclass(frozen=True)
class _Rotated:
    """``x * cos + rotate(x) * sin`` of one tensor."""

    x: Node
    cos: _Table
    sin: _Table
    interleaved: bool
    root: Node
    interior: frozenset[Node]
    copies: frozenset[Node]


def _match(context: Context, node: Node) -> Match | None:
    first = _rotated(node)
    if first is None:
        return None
    second = _partner(first)
    if second is None:
        raise Refuse("no second tensor is rotated by the same cos and sin")
    return _emit(first, second)


def _rotated(node: Node) -> _Rotated | None:
    """The rotation around a rotated half; None if the anchor is another cat or stack."""
    halves = _rotate_half(node)
    if halves is None:
        return None
    x, rotate, interior, interleaved = halves
    with_sin = sole_user(rotate, "the rotated half")
    if rotate in widened_from(with_sin):
        interior.add(rotate)
        rotate, with_sin = with_sin, sole_user(with_sin, "the rotated half")
    sin = split_operands(with_sin, "mul", rotate)
    root = sole_user(with_sin, "the product with sin")
    with_cos = split_operands(root, "add", with_sin)
    pair = operands(with_cos, "mul") or ()
    factors = [arg for arg in pair if isinstance(arg, Node)]
    own = [arg for arg in factors if same_value(arg, x)]
    if not isinstance(sin, Node) or not isinstance(with_cos, Node) or len(factors) != 2:
        raise Refuse("the rotated half is not part of x * cos + rotate(x) * sin")
    if len(own) != 1:
        raise Refuse("cos does not multiply the tensor that is rotated")
    cos = factors[1] if factors[0] is own[0] else factors[0]
    _check_shapes(x, root, cos, sin)
    # Operands are only converted to wider dtypes, so casting them earlier does not change values.
    dtypes = {dtype_of(value) for value in (with_cos, with_sin, root)}
    require(len(dtypes) == 1, "the products with cos and sin have different dtypes")
    interior |= {rotate, with_sin, with_cos}
    tables = [_Table(table, _base(table)) for table in (cos, sin)]
    copies = frozenset(own) - {x}
    return _Rotated(x, tables[0], tables[1], interleaved, root, frozenset(interior), copies)


def _rotate_half(node: Node) -> tuple[Node, Node, set[Node], bool] | None:
    """A quarter turn of pairs of features: input, result, nodes, and how features are paired."""
    found = view(node)
    if found is None or len(found.args) != 2:
        return None
    negated = operands(found.args[0], "neg")
    parts = [view(negated[0]) if negated else None, view(found.args[1])]
    if any(part is None or part.op != "slice" for part in parts):
        return None
    high, low = parts
    assert high is not None and low is not None and negated is not None
    x, rank = low.args[0], rank_of(low.args[0]) or 0
    size = (shape_of(x) or (0,))[-1]
    if high.args[0] is not x or high.attrs["dim"] != rank - 1 or low.attrs["dim"] != rank - 1:
        raise Refuse("the halves that are rotated are not the two halves of one tensor")
    bounds = [(part["start"], part["stop"], part["step"]) for part in (low.attrs, high.attrs)]
    interior = {node, found.args[0], high.node, low.node}
    if found.op == "cat" and found.attrs["dim"] == rank - 1:
        half = size // 2
        require(
            bounds == [(0, half, 1), (half, size, 1)] and size % 2 == 0,
            "the halves that are rotated are not the two halves of one tensor",
        )
        return x, node, interior, False
    if found.op == "stack" and found.attrs["dim"] == rank:
        require(
            bounds == [(0, size, 2), (1, size, 2)] and size % 2 == 0,
            "the pairs that are rotated are not the even and odd features of one tensor",
        )
        flat = sole_user(node, "the rotated pairs")
        merged = operands(flat, "reshape") is not None
        require(
            merged and same_sizes(shape_of(flat), shape_of(x)),
            "the rotated pairs are not flattened",
        )
        return x, flat, interior, True
    raise Refuse("the halves are not joined in the last dimension")


def _check_shapes(x: Node, root: Node, cos: Node, sin: Node) -> None:
    shape, dtype = shape_of(x), dtype_of(root)
    if shape is None or len(shape) != 4:
        raise Refuse("the rotated tensor is not [batch, heads, sequence, features]")
    require(same_sizes(shape, shape_of(root)), "cos and sin broadcast the tensor to another shape")
    require(dtype in COMPUTED, f"{dtype} is not supported")
    for name, table in (("cos", cos), ("sin", sin)):
        sizes = shape_of(table)
        if sizes is None or not 2 <= len(sizes) <= 4:
            raise Refuse(f"{name} is not a table of [batch, sequence, features]")
        fits = same_sizes(sizes[-2:], shape[-2:])
        fits = fits and (len(sizes) < 3 or same_size(sizes[-3], 1))
        fits = fits and (len(sizes) < 4 or same_size(sizes[0], 1) or same_size(sizes[0], shape[0]))
        require(fits, f"{name} has shape {list(sizes)}, which is not one angle per position")


def _base(factor: Node) -> Node:
    """The [batch, sequence, features] table behind a [batch, 1, sequence, features] factor."""
    found = view(factor)
    if found is None or found.op != "unsqueeze" or found.attrs["dim"] != 1:
        return factor
    base = found.args[0]
    return base if isinstance(base, Node) and rank_of(base) == 3 else factor


def _partner(first: _Rotated) -> _Rotated | None:
    """The next rotation in the graph with the same tables that does not depend on the first."""
    used = min(first.root.users, default=None)
    node = first.root.next
    while node.op != "root":
        found = view(node)
        if found is not None and found.op in PATTERN.anchors:
            try:
                second = _rotated(node)
            except Refuse:
                second = None
            if second is not None:
                free = used is None or second.x < used
                return second if free and _fits(first, second) else None
        node = node.next
    return None


def _fits(first: _Rotated, second: _Rotated) -> bool:
    a, b = shape_of(first.x) or (), shape_of(second.x) or ()
    return (
        first.cos.base is second.cos.base
        and first.sin.base is second.sin.base
        and first.interleaved == second.interleaved
        and same_sizes((a[0], *a[2:]), (b[0], *b[2:]))
        and dtype_of(first.root) == dtype_of(second.root)
    )


def _emit(first: _Rotated, second: _Rotated) -> Match:
    dtype = dtype_of(first.root)
    cos, sin = first.cos, first.sin
    shapes = [shape_of(table.factor) or () for table in (cos, sin)]
    require(same_sizes(shapes[0], shapes[1]), "cos and sin have different shapes")

    def build(builder: Builder) -> list[Node]:
        tensors = [_promoted(builder, tensor, dtype) for tensor in (first.x, second.x)]
        tables = [_promoted(builder, _table(builder, table), dtype) for table in (cos, sin)]
        both = builder.call(PATTERN.overload(), *tensors, *tables, first.interleaved)
        return [builder.item(both, 0), builder.item(both, 1)]

    absorbed = {t.factor for r in (first, second) for t in (r.cos, r.sin) if t.factor is not t.base}
    return Match(
        inputs=(first.x, second.x, cos.base, sin.base),
        roots=(first.root, second.root),
        interior=first.interior | second.interior,
        build=build,
        absorbed=first.copies | second.copies | absorbed,
    )


def _table(builder: Builder, table: _Table) -> Node:
    """The table as [batch or 1, sequence, features]."""
    rank = rank_of(table.base)
    if rank == 4:
        return builder.call(torch.ops.aten.squeeze.dim, table.base, 1)
    return (
        table.base if rank == 3 else builder.call(torch.ops.aten.unsqueeze.default, table.base, 0)
    )


def _promoted(builder: Builder, node: Node, dtype: torch.dtype | None) -> Node:
    """Write out the cast that mixed dtypes imply: ``bfloat16 * float32`` is computed in float32."""
    if dtype_of(node) == dtype:
        return node
    return builder.call(torch.ops.aten.to.dtype, node, dtype)


PATTERN = Pattern(
    name="rope",
    operator="fusewheel::rope",
    anchors=frozenset({"cat", "stack"}),
    match=_match,
    pays_above=PaysAbove(inductor_training=576),
)

"""The last layer of a language model and its loss, if nothing else needs the logits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.fx import Node

from fusewheel.compiler.ir.canonical import operands, rank_of, view
from fusewheel.compiler.ir.metadata import dtype_of, requires_grad, same_sizes, shape_of
from fusewheel.compiler.ir.pattern import (
    Builder,
    Context,
    Match,
    Pattern,
    Refuse,
    require,
    users_of,
)
from fusewheel.compiler.read.loss_rows import Rows, implicit_casts, rows_of
from fusewheel.compiler.read.losses import ANCHORS, LossCall, loss_of

_aten = torch.ops.aten


def _match(context: Context, node: Node) -> Match | None:
    try:
        loss = loss_of(node)
        rows = rows_of(context, loss)[-1]
    except Refuse:  # the pattern cross_entropy reports the reason
        return None
    layer = _layer(rows.node)
    if layer is None:
        return None
    interior = rows.passed | layer.interior
    _check_unused(interior, node)
    trained = requires_grad(node)
    require(
        not trained or loss.reduction != "none",
        "the losses of single rows are needed: the backward would compute the logits again",
    )
    _check_class_weight(loss, layer)
    return _emit(loss, rows, layer, interior, trained)


@dataclass(frozen=True)
class _Layer:
    """``x @ weight.T + bias``; for a product with a matrix [features, classes], `weight` is the
    matrix.
    """

    x: Node
    weight: Node
    bias: Node | None
    turned: bool
    dtype: torch.dtype | None
    interior: frozenset[Node]

    @property
    def inputs(self) -> tuple[Node, ...]:
        """The tensors that the layer takes."""
        return (self.x, self.weight) if self.bias is None else (self.x, self.weight, self.bias)


def _layer(node: Node) -> _Layer | None:
    """The linear layer whose result a node is."""
    dtype, interior = dtype_of(node), frozenset({node})
    parts = operands(node, "linear")
    if parts is not None:
        x, weight, bias = parts
        return _Layer(x, weight, bias, False, dtype, interior) if _is_layer(x, weight) else None
    sides = operands(node, "add") or (node, None)
    product = next((side for side in sides if operands(side, "matmul") is not None), None)
    if not isinstance(product, Node):
        return None
    bias = None
    if product is not node:
        bias = sides[1] if product is sides[0] else sides[0]
        classes = (shape_of(node) or ())[-1:]
        if not isinstance(bias, Node) or not same_sizes(shape_of(bias), classes):
            return None
        dtypes = dtype_of(product), dtype_of(bias)
        require(dtypes == (dtype, dtype), f"{dtypes[1]} is added to a product in {dtypes[0]}")
    x, matrix = operands(product, "matmul") or (None, None)
    if not _is_layer(x, matrix):
        return None
    found = view(matrix)
    transposed = found is not None and found.op == "permute" and found.attrs["dims"] == (1, 0)
    weight = found.args[0] if found is not None and transposed else matrix
    return _Layer(x, weight, bias, not transposed, dtype, interior | {product})


def _is_layer(x: object, weight: object) -> bool:
    return (rank_of(x) or 0) > 1 and rank_of(weight) == 2


def _check_unused(interior: frozenset[Node], root: Node) -> None:
    for node in sorted(interior):
        for user in users_of(node):
            require(user.op != "output", "the logits are returned as well")
            other = user is not root and user not in interior
            require(not other, f"the logits are also used by {user.name}")


def _check_class_weight(loss: LossCall, layer: _Layer) -> None:
    dtype = layer.dtype if loss.weight is None else dtype_of(loss.weight)
    require(dtype == layer.dtype, f"the class weights are {dtype}, the layer is {layer.dtype}")


def _emit(
    loss: LossCall, rows: Rows, layer: _Layer, interior: frozenset[Node], trained: bool
) -> Match:
    def build(builder: Builder) -> list[Node]:
        x, weight, *bias = (_in_dtype(builder, node, layer.dtype) for node in layer.inputs)
        needs = [trained and requires_grad(node) for node in layer.inputs]
        x, target = rows.matrix(builder, x), loss.classes(builder)
        weight = builder.call(_aten.t.default, weight) if layer.turned else weight
        arguments = (x, weight, target, bias[0] if bias else None, loss.weight)
        options = (loss.ignore_index, loss.label_smoothing, 0.0, rows.softcap)
        wanted = (loss.reduction != "none", *(needs if bias else [*needs, False]))
        results = builder.call(PATTERN.overload(), *arguments, *options, *wanted)
        return [loss.finish(builder, builder.item(results, 0), target, summed=True)]

    given = [loss.target] if loss.weight is None else [loss.target, loss.weight]
    # If autocast runs the layer in another dtype, its casts are written out.
    widened = implicit_casts(loss, rows) | layer.interior
    return Match((*layer.inputs, *given), (loss.root,), interior, build, widened=widened)


def _in_dtype(builder: Builder, node: Node, dtype: torch.dtype | None) -> Node:
    return node if dtype_of(node) == dtype else builder.call(_aten.to.dtype, node, dtype)


PATTERN = Pattern(
    name="linear_cross_entropy",
    operator="fusewheel::linear_cross_entropy",
    anchors=ANCHORS,
    match=_match,
    order=-1,
)

"""Cross entropy of logits and classes, with the views and casts of the logits before it."""

from __future__ import annotations

from torch.fx import Node

from fusewheel.compiler.ir.metadata import dtype_of
from fusewheel.compiler.ir.pattern import Builder, Context, Match, Pattern, require, users_of
from fusewheel.compiler.read.loss_rows import Rows, implicit_casts, rows_of
from fusewheel.compiler.read.losses import ANCHORS, LossCall, loss_of


def _match(context: Context, node: Node) -> Match:
    loss = loss_of(node)
    rows = _best(loss, rows_of(context, loss))

    def build(builder: Builder) -> list[Node]:
        logits, target = rows.matrix(builder, rows.node), loss.classes(builder)
        options = (loss.weight, loss.ignore_index, loss.label_smoothing, 0.0, rows.softcap)
        results = builder.call(PATTERN.overload(), logits, target, *options, False)
        return [loss.finish(builder, builder.item(results, 0), target, summed=False)]

    inputs = [rows.node, loss.target]
    if loss.weight is not None:
        inputs.append(loss.weight)
    return Match(
        inputs=tuple(inputs),
        roots=(node,),
        interior=rows.own,
        build=build,
        absorbed=rows.passed - rows.own,
        widened=implicit_casts(loss, rows),
    )


def _best(loss: LossCall, found: list[Rows]) -> Rows:
    """The nearest value in the narrowest dtype, which its gradient has; before any soft cap."""
    if loss.weight is not None:
        dtype = dtype_of(loss.weight)
        found = [rows for rows in found if dtype_of(rows.node) == dtype]
        require(bool(found), f"the class weights are {dtype}")
    # If capped logits are used elsewhere too, they have to be computed anyway.
    found = [rows for rows in found if _is_private(loss, rows)] or found
    wide = dtype_of(loss.logits)
    return min(found, key=lambda rows: (rows.softcap == 0, dtype_of(rows.node) == wide))


def _is_private(loss: LossCall, rows: Rows) -> bool:
    inside = rows.own | {loss.root}
    return all(user in inside for node in rows.own for user in users_of(node))


PATTERN = Pattern(
    name="cross_entropy",
    operator="fusewheel::cross_entropy",
    anchors=ANCHORS,
    match=_match,
)

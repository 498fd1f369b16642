"""Rewrites the graph of a frozen module for inputs like an example."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fusewheel._torch import jit
from fusewheel.compiler.ir.effects import Effects
from fusewheel.compiler.ir.metadata import storage_of
from fusewheel.compiler.match.report import Report
from fusewheel.compiler.match.rewrite import rewrite
from fusewheel.jit.graph.mirror import Mirror, mirror
from fusewheel.jit.graph.passes import simplify, sink_containers
from fusewheel.jit.graph.replay import reads, replay
from fusewheel.jit.inputs import Assumptions

_ROUNDS = 8
_NUMBERS = ("IntType", "BoolType", "FloatType")


class NotLowered(Exception):
    """The graph cannot be rewritten; the message says why."""


def lower(graph: jit.Graph, assumptions: Assumptions, inputs: Sequence[Any]) -> Report:
    """Replace parts of a graph by fused operators.

    Args:
        graph: the graph, which is changed in place; after an exception it must not be used.
        assumptions: the conditions on its inputs; relations between sizes are added.
        inputs: example values of the graph's inputs.

    Returns:
        what was replaced and refused.

    Raises:
        NotLowered: if the graph writes to its inputs.
    """
    image = settled(graph, assumptions, inputs)
    _check_writes(image, assumptions)
    before = reads(image)
    report = rewrite(image.module)
    if report.count():
        replay(image, before)
        graph.lint()
        simplify(graph)
    return report


def settled(graph: jit.Graph, assumptions: Assumptions, inputs: Sequence[Any]) -> Mirror:
    """The mirror of the graph, after everything that the assumptions decide became a constant."""
    for _ in range(_ROUNDS):
        sink_containers(graph)
        image = mirror(graph, inputs, assumptions.fake_mode)
        if not _insert_constants(image):
            break
        simplify(graph)
    return image


def _insert_constants(image: Mirror) -> bool:
    changed = False
    for value, number in image.settled:
        if value.type().kind() not in _NUMBERS or not value.uses():
            continue
        with image.source.insert_point_guard(next(iter(image.source.nodes()))):
            constant = image.source.insertConstant(number)  # type: ignore[attr-defined]
        value.replaceAllUsesWith(constant)
        changed = True
    return changed


def _check_writes(image: Mirror, assumptions: Assumptions) -> None:
    # When the graph runs, two inputs may be the same tensor, or share memory with a weight.
    memory = {storage_of(tensor) for tensor in assumptions.tensors}
    for write in Effects(image.module.graph).writes:
        if write.storages is not None and not memory.isdisjoint(write.storages):
            raise NotLowered(f"{write.node} writes to an input in place")

"""Moves parts of a graph into programs, which the operator ``fusewheel::run`` executes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fusewheel._torch import jit
from fusewheel.compiler.ir.metadata import inference
from fusewheel.compiler.ir.pattern import Context
from fusewheel.compiler.lower.engine import ProgramReport
from fusewheel.compiler.lower.engine import lower as lower_parts
from fusewheel.jit.graph.passes import simplify
from fusewheel.jit.graph.replay import reads, replay
from fusewheel.jit.inputs import Assumptions
from fusewheel.jit.lower import settled


def insert_programs(
    graph: jit.Graph, assumptions: Assumptions, inputs: Sequence[Any]
) -> list[ProgramReport]:
    """Replace parts of a rewritten graph by programs.

    Args:
        graph: the graph, which is changed in place; after an exception it must not be used.
        assumptions: the conditions on its inputs; relations between sizes are added.
        inputs: example values of the graph's inputs.

    Returns:
        the parts that are programs now, and those that could not become one, in order.
    """
    image = settled(graph, assumptions, inputs)
    before = reads(image)
    with inference():
        found = lower_parts(Context(image.module.graph))
    if any(part.lowered for part in found):
        replay(image, before)
        graph.lint()
        simplify(graph)
    return found

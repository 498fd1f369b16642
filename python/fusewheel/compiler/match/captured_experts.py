"""Notes what was captured in place of transformers' loop over experts, which no graph shows."""

from __future__ import annotations

import torch
from torch.fx import Graph, Node

from fusewheel.compiler.ir.source import Line, frames_of
from fusewheel.compiler.match.registry import EXPERTS
from fusewheel.compiler.match.report import Recorder

FUNCTION = "captured_experts"
"""The function of `fusewheel.transformers` that is captured, as stack traces name it."""
_WHOLE = "experts"
# A block of experts in several operators has two of these: before and after its activation.
_PRODUCTS = "grouped_linear", "grouped_linear_blocks"


def note_captured_experts(graph: Graph, recorder: Recorder) -> None:
    """Notes each block of experts in a graph that is there in place of the loop."""
    for name in (_WHOLE, *_PRODUCTS):
        found = [line for node in _calls(graph, name) if (line := _caller(node)) is not None]
        for line in found[:: 1 if name == _WHOLE else 2]:
            recorder.replaced(EXPERTS, f"fusewheel::{name}", line, None)


def _calls(graph: Graph, name: str) -> list[Node]:
    """The calls of an operator in a graph, by itself or by its overload."""
    operator = getattr(torch.ops.fusewheel, name)
    return sorted(
        node
        for target in (operator, operator.default)
        for node in graph.find_nodes(op="call_function", target=target)
    )


def _caller(node: Node) -> Line | None:
    """The line that calls the experts; None if they are not captured in the loop's place."""
    frames = frames_of(node)
    for i, frame in enumerate(frames):
        if frame.function == FUNCTION:
            # The frame before is transformers' choice of an implementation.
            before = [f.line for f in frames[:i]][-2:]
            return before[0] if before else Line("<unknown>", "")
    return None

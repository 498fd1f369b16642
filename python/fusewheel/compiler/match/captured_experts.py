"""Notes what was captured in place of transformers' loop over experts, which no graph shows."""

from __future__ import annotations

from torch.fx import Graph, Node

from fusewheel.compiler.ir.source import Line, frames_of
from fusewheel.compiler.match.registry import EXPERTS
from fusewheel.compiler.match.report import Recorder

FUNCTION = "captured_experts"
"""The function of `fusewheel.transformers` that is captured, as stack traces name it."""
_WHOLE = "fusewheel::experts"
# A block of experts in several operators has two of these: before and after its activation.
_PRODUCTS = "fusewheel::grouped_linear", "fusewheel::grouped_linear_blocks"


def note_captured_experts(graph: Graph, recorder: Recorder) -> None:
    """Notes each block of experts in a graph that is there in place of the loop."""
    found: dict[str, list[Line]] = {_WHOLE: [], **{name: [] for name in _PRODUCTS}}
    for node in graph.nodes:
        name = _operator(node)
        if name in found and (line := _caller(node)) is not None:
            found[name].append(line)
    for name, lines in found.items():
        for line in lines[:: 1 if name == _WHOLE else 2]:
            recorder.replaced(EXPERTS, name, line, None)


def _operator(node: Node) -> str:
    """The qualified name of the operator that a node calls."""
    packet = getattr(node.target, "overloadpacket", node.target)
    return str(packet).replace(".", "::")


def _caller(node: Node) -> Line | None:
    """The line that calls the experts; None if they are not captured in the loop's place."""
    frames = frames_of(node)
    for i, frame in enumerate(frames):
        if frame.function == FUNCTION:
            # The frame before is transformers' choice of an implementation.
            before = [f.line for f in frames[:i]][-2:]
            return before[0] if before else Line("<unknown>", "")
    return None

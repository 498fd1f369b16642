"""Caches of keys and values that grow by ``cat`` in a graph that fusewheel runs itself.

transformers' ``DynamicCache`` makes a new tensor of all keys for each token. `append_rows` lets the
new rows be written behind the old ones instead, see `fusewheel.engine.growing`.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from fusewheel._torch.dispatcher import is_wrapper
from fusewheel._torch.dynamo import mark_dynamic
from fusewheel.compiler.cost.traffic import bytes_of
from fusewheel.compiler.ir.canonical import view
from fusewheel.compiler.ir.metadata import same_sizes, shape_of, tensor_of
from fusewheel.compiler.ir.pattern import Context, Refuse, require
from fusewheel.compiler.ir.purity import escapes, memory_of
from fusewheel.compiler.ir.source import line_of
from fusewheel.compiler.match.registry import APPEND
from fusewheel.compiler.match.report import Recorder
from fusewheel.compiler.match.strides import follow, restrided
from fusewheel.compiler.match.switches import REASON, disabled
from fusewheel.engine.growing import append, can_append

_log = logging.getLogger("fusewheel.compiler")


def append_rows(gm: GraphModule, recorder: Recorder) -> None:
    """Replace each ``cat`` by which a cache grows, and note it in `recorder`.

    Args:
        gm: a graph in which autograd records nothing; it is changed in place.
        recorder: notes what is replaced, and what is left alone and why.
    """
    context = Context(gm.graph)
    found = _grown(gm.graph)
    for node, pair in found.items():
        line, past = line_of(node), pair[0]
        try:
            require(APPEND not in disabled(), REASON)
            _check(context, node, pair)
            _replace(context, node, pair)
        except Refuse as refusal:
            recorder.refused(APPEND, line, str(refusal))
            _log.debug("%s: %s kept: %s", line.source, APPEND, refusal)
            continue
        tensor = tensor_of(past)
        size = None if tensor is None else bytes_of(tensor)
        recorder.replaced(APPEND, "a view with room for more", line, size and 2 * size)
        _log.info("%s: cat replaced by %s", line.source, APPEND)
    if found:
        gm.graph.lint()
        gm.recompile()


def _grown(graph: Graph) -> dict[Node, tuple[Node, Node]]:
    """The nodes that append to a cache that comes in and goes out again, with old and new rows."""
    results = memory_of(graph.output_node().all_input_nodes)
    pairs = {node: _rows(node) for node in graph.nodes}
    return {node: pair for node, pair in pairs.items() if pair and escapes(node, results)}


def _rows(node: Node) -> tuple[Node, Node] | None:
    found = view(node)
    if found is None or found.op != "cat" or len(found.args) != 2 or found.attrs["dim"] != 2:
        return None
    past, new = found.args
    if len(shape_of(node) or ()) != 4 or not isinstance(past, Node) or not isinstance(new, Node):
        return None
    first = same_sizes(shape_of(past), (0,))
    return (past, new) if first or past.op == "placeholder" else None


def grown_outputs(gm: GraphModule) -> tuple[int, ...]:
    """The positions of the caches that have grown, or pieces of them, among a graph's outputs."""
    memory = memory_of(_grown(gm.graph)) - {None}
    outputs = gm.graph.output_node().args[0]
    if not memory or not isinstance(outputs, (tuple, list)):
        return ()
    return tuple(
        position
        for position, output in enumerate(outputs)
        if len(shape_of(output) or ()) == 4 and memory & memory_of([output])
    )


def mark_rows(rows: Tensor) -> None:
    """Tell Dynamo that the number of rows of a cache changes from call to call."""
    mark_dynamic(rows, {2})


def with_dynamic_rows(
    compiled: Callable[..., Any], positions: tuple[int, ...]
) -> Callable[..., Any]:
    """The same function, whose outputs tell Dynamo that their number of rows changes.

    Then the graph that takes them as inputs is compiled once, for any number of rows.

    Args:
        compiled: returns a list or tuple of tensors.
        positions: those of the outputs; if there are none, the function is returned as it is.
    """
    if not positions:
        return compiled

    @functools.wraps(compiled)
    def call(*arguments: Any) -> Any:
        outputs = compiled(*arguments)
        for position in positions:
            mark_rows(outputs[position])
        return outputs

    return call


def _check(context: Context, node: Node, pair: tuple[Node, Node]) -> None:
    """Refuse what `append` does not compute."""
    result = tensor_of(node)
    assert result is not None
    for tensor in map(tensor_of, pair):
        if tensor is None or is_wrapper(tensor):
            raise Refuse("it is not made of ordinary tensors")
        require(tensor.device.type == "cpu", "it is only replaced on a CPU")
        require(tensor.dtype == result.dtype, "the new rows have another dtype")
    require(can_append(), "no CPU kernels are loaded, or this torch has no copy-on-write tensors")
    require(context.modes[node].functorch == 0, "it runs inside a torch.func transform")
    require(
        not context.effects.may_write_to([pair[0], node]),
        "the graph may write in place to the cache",
    )


def _replace(context: Context, node: Node, pair: tuple[Node, Node]) -> None:
    old = tensor_of(node)
    assert old is not None
    batch, heads, _rows, size = old.shape
    new = restrided(context, node, old, (heads * size, size, batch * heads * size, 1))
    values = follow(context, {node: new}, outputs=True)
    with context.effects.updating(values):
        for changed, value in values.items():
            key = "example_value" if "example_value" in changed.meta else "val"
            changed.meta[key] = value
        node.op, node.target, node.args, node.kwargs = "call_function", append, pair, {}

"""Puts programs into a graph, in place of the parts that they compute."""

from __future__ import annotations

import itertools
import logging
import operator
import os
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from fusewheel.compiler.ir.metadata import BOUND, note_failure
from fusewheel.compiler.ir.pattern import Context
from fusewheel.compiler.ir.source import Line, line_of
from fusewheel.compiler.lower.program import Lowered, write_program
from fusewheel.compiler.lower.regions import Region, find_regions
from fusewheel.compiler.lower.sizes import Inexpressible
from fusewheel.compiler.lower.steps import dtype_of_number
from fusewheel.engine import bind, can_bind
from fusewheel.engine.growing import keep

_log = logging.getLogger("fusewheel.compiler")

# A program of one step would only take its place.
_FEWEST = 2
# From so many of fusewheel's operators and views on a program was measured to be faster.
# PyTorch's operators take as long in both.
_PAYS = 32


@dataclass(frozen=True)
class ProgramReport:
    """A part of a graph that became a program, or could have.

    Attributes:
        steps: how many operators it calls.
        begin: the line of the model that its first step comes from.
        end: the line of what ends it; that of its last step where the graph ends.
        reason: why it ends there, or why it is no program.
        lowered: whether it is a program.
    """

    steps: int
    begin: Line
    end: Line
    reason: str
    lowered: bool


def lower(
    context: Context,
    outside: Iterable[Node] = (),
    *,
    weights: Mapping[Node, Tensor] = MappingProxyType({}),
    only_if_faster: bool = False,
) -> list[ProgramReport]:
    """Replace parts of a graph by programs.

    Args:
        context: the graph, in which nothing records a gradient; it is changed in place.
        outside: nodes that stay as they are; default ().
        weights: placeholders with the tensors that they stand for in every call. Programs hold
            these where they can, see `fusewheel.engine.bound`. Default none.
        only_if_faster: leave parts as they are that are too small to be faster as a program.
            Default False.

    Returns:
        what was found, in order.
    """
    try:
        held = weights if can_bind() else {}
        found = list(_parts(context, outside, held))
    except Exception:
        # Python can call all operators too.
        if os.environ.get("FUSEWHEEL_COMPILER_STRICT"):
            raise
        note_failure(context.graph)
        _log.warning("the graph is left without programs", exc_info=True)
        return []
    if only_if_faster:
        found = [part for part in found if _pays(part[0])]
    # From the last to the first: what a region reads is named before it is replaced.
    for region, lowered, _ in reversed(found):
        if lowered is not None:
            _replace(context, region, lowered, held)
    return [report for _, _, report in found]


def programs_of(context: Context) -> list[ProgramReport]:
    """What `lower` would find in a graph."""
    return [report for _, _, report in _parts(context, (), ())]


def _parts(
    context: Context, outside: Iterable[Node], weights: Container[Node]
) -> Iterator[tuple[Region, Lowered | None, ProgramReport]]:
    for region in find_regions(context, set(outside)):
        if len(region.steps) < _FEWEST:
            continue
        nodes = list(region.steps)
        begin, end = line_of(nodes[0]), line_of(region.end or nodes[-1])
        lowered, reason = None, region.reason
        try:
            lowered = write_program(context.graph, region, weights)
        except Inexpressible as error:
            reason = str(error)
        yield region, lowered, ProgramReport(len(nodes), begin, end, reason, lowered is not None)


def _pays(region: Region) -> bool:
    own = sum("fusewheel" in str(call.operator) for call in region.steps.values())
    return own + len(region.views) >= _PAYS


def _replace(
    context: Context, region: Region, lowered: Lowered, weights: Mapping[Node, Tensor]
) -> None:
    graph, module = context.graph, context.graph.owning_module
    assert module is not None
    last = list(region.steps)[-1]
    place = last

    def add(node: Node, meta: Mapping[str, Any] = MappingProxyType({})) -> Node:
        nonlocal place
        place.append(node)
        place = node
        node.meta.update(meta)
        context.add(node, last)  # which reads from `meta` what memory the node shares
        return node

    program, about = lowered.program.code, {}
    if lowered.weights:
        about[BOUND] = program, lowered.weights
        program = bind(program, [weights[node] for node in lowered.weights])
    code = add(graph.get_attr(_attribute(module, "program", program)), about)
    inputs = []
    for given in lowered.inputs:
        if not isinstance(given, Node):
            number = torch.tensor(given, dtype=dtype_of_number(given))
            given = add(graph.get_attr(_attribute(module, "number", number)))
        inputs.append(given)
    key = "example_value" if "example_value" in last.meta else "val"
    results = [*lowered.outputs, *lowered.kept]
    run = add(
        graph.call_function(
            torch.ops.fusewheel.run.default, (code, inputs, lowered.program.outputs)
        ),
        {
            "stack_trace": next(iter(region.steps)).meta.get("stack_trace"),
            key: [node.meta.get(key) for node in results],
        },
    )
    items = [
        add(graph.call_function(operator.getitem, (run, i)), node.meta)
        for i, node in enumerate(results)
    ]
    found = dict(zip(lowered.outputs, items, strict=False))
    for node, second in zip(lowered.kept, items[len(lowered.outputs) :], strict=True):
        past = region.steps[node].arguments[0]
        if not isinstance(past, Node) or past in region:
            past = found[node]
        found[node] = add(graph.call_function(keep, (found[node], second, past)), node.meta)
    for node, item in found.items():
        node.replace_all_uses_with(item)
    _clean(context, region, place)


def _clean(context: Context, region: Region, place: Node) -> None:
    """Erase what a program computes; views that others need follow it."""
    members = {*region.steps, *region.items, *region.views}
    for node in reversed([node for node in context.graph.nodes if node in members]):
        if not node.users:
            context.erase(node)
    behind: dict[Node, None] = {}
    for node in context.graph.nodes:
        if node is place:
            break  # what follows may read what stands between
        # A view of what is outside may have the size of a result.
        if node in region.views and (
            region.root(node) in region or any(source in behind for source in node.all_input_nodes)
        ):
            behind[node] = None
    for node in reversed(behind):
        place.append(node)


def _attribute(module: GraphModule, name: str, tensor: Tensor) -> str:
    """The name of a new buffer that holds a tensor."""
    for number in itertools.count():
        full = f"_fusewheel_{name}_{number}"
        if not hasattr(module, full):
            module.register_buffer(full, tensor)
            return full
    raise AssertionError

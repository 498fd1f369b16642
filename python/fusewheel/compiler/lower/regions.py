"""Finds the parts of a graph that can be programs.

A region is a run of steps. Nodes between two of its steps that are no steps stay in front of it, if
they only compute values that do not depend on the region. The first that does, or that may do
something else, ends the region.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.fx import Node

from fusewheel.compiler.ir.metadata import tensor_of, value_of
from fusewheel.compiler.ir.pattern import Context
from fusewheel.compiler.ir.purity import is_pure
from fusewheel.compiler.lower.sizes import bare_symbols, reads_sizes, sizes_in, symbols_of
from fusewheel.compiler.lower.steps import Call, call_of
from fusewheel.compiler.lower.views import shown_by
from fusewheel.engine.program import DTYPES


@dataclass
class Region:
    """A part of a graph.

    Attributes:
        steps: the nodes that its program computes, in order.
        views: the nodes that show memory or sizes of others; each with what it shows.
        items: the nodes that are one result of a step with several, with that step and its number.
        end: the node that ends it, None if the graph does.
        reason: why it ends there.
    """

    steps: dict[Node, Call] = field(default_factory=dict)
    views: dict[Node, Node] = field(default_factory=dict)
    items: dict[Node, tuple[Node, int]] = field(default_factory=dict)
    end: Node | None = None
    reason: str = ""

    def __contains__(self, node: Node) -> bool:
        return node in self.steps or node in self.views or node in self.items

    def root(self, node: Node) -> Node:
        """The node whose memory a node shows: a result of a step, or a node outside."""
        while node in self.views:
            node = self.views[node]
        return node


def find_regions(context: Context, outside: set[Node]) -> Iterator[Region]:
    """The regions of a graph, in order.

    Args:
        context: the graph, in which nothing records a gradient.
        outside: nodes that are no steps.
    """
    known = {
        symbol
        for node in context.graph.find_nodes(op="placeholder")
        if isinstance(value_of(node), Tensor)
        for symbol, _, _ in bare_symbols(value_of(node))  # type: ignore[arg-type]
    }
    region = Region()
    for node in list(context.graph.nodes):
        if node.op in ("placeholder", "get_attr"):
            continue
        if node.op == "output" or (reason := _refusal(context, node, region, known, outside)):
            depends = any(source in region for source in node.all_input_nodes)
            quiet = _is_quiet(node) or reads_sizes(node, known) or node in outside
            if node.op != "output" and not depends and quiet:
                continue
            if region.steps:
                region.end = None if node.op == "output" else node
                region.reason = "the graph ends" if node.op == "output" else reason
                yield region
            region = Region()


def _is_quiet(node: Node) -> bool:
    """Whether a node only computes a value."""
    return is_pure(node) or isinstance(value_of(node), (int, float, bool, torch.SymInt))


def _refusal(
    context: Context, node: Node, region: Region, known: set[object], outside: set[Node]
) -> str:
    """Why a node is not in the region; empty if it is now."""
    if node in outside:
        return "its value is known already"
    modes = context.modes[node]
    if modes.autocast or modes.functorch:
        return "autocast or a transform is active"
    tensors = _tensors(value_of(node))
    if tensors is None:
        shown = next((source for source in node.all_input_nodes if source in region), None)
        if shown is None or not reads_sizes(node, known):
            return "its value is no tensor"
        region.views[node] = shown
        return ""
    for tensor in tensors:
        if tensor.device.type != "cpu" or tensor.layout != torch.strided:
            return "a tensor is not dense, or not on a CPU"
        if tensor.dtype not in DTYPES:
            return f"programs have no values of dtype {tensor.dtype}"
        if not symbols_of(tensor) <= known:
            return "a size depends on numbers in a tensor"
    if any(not _is_value(source) for source in node.all_input_nodes):
        return "an argument is neither a tensor nor a number"
    shown = shown_by(node)
    # What is no step may have several results; one of them is a value of its own.
    if shown is not None and (tensor_of(shown) is not None or shown in region.views):
        region.views[node] = shown
        return ""
    if (item := _item(region, node)) is not None:
        for same, chosen in region.items.items():
            if chosen == item:
                node.replace_all_uses_with(same)
                region.views[node] = same
                return ""
        region.items[node] = item
        return ""
    call = call_of(node)
    if call is None:
        return f"{_name(node)} is no step"
    if call.results > 1 and not all(_is_item(user) for user in node.users):
        return f"all results of {_name(node)} are used at once"
    region.steps[node] = call
    return ""


def _item(region: Region, node: Node) -> tuple[Node, int] | None:
    """The step of which a node is one result, and which."""
    if not _is_item(node):
        return None
    step, index = node.args
    many = isinstance(step, Node) and step in region.steps and region.steps[step].results > 1
    return (step, index) if many else None  # type: ignore[return-value]


def _tensors(value: object) -> list[Tensor] | None:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, (tuple, list)) and all(isinstance(item, Tensor) for item in value):
        return list(value)
    return None


def _is_value(node: Node) -> bool:
    value = value_of(node)
    return _tensors(value) is not None or isinstance(value, float) or sizes_in(value) is not None


def _is_item(node: Node) -> bool:
    return node.target is operator.getitem and isinstance(node.args[1], int)


def _name(node: Node) -> str:
    return str(getattr(node.target, "__name__", node.target))


def outputs_of(region: Region) -> list[Node]:
    """The results of steps that nodes outside of the region need, in order."""
    needed = []
    for node in (*region.steps, *region.items):
        if tensor_of(node) is not None and any(_needed_outside(region, u) for u in node.users):
            needed.append(node)
    return needed


def _needed_outside(region: Region, user: Node) -> bool:
    if user in region.views:
        return any(_needed_outside(region, u) for u in user.users)
    return user not in region

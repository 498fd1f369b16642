"""Estimates how much time a code generator could save in a rewritten graph.

It could fuse two neighbours that are both PyTorch's arithmetic or reductions. That saves a call and
the memory traffic between the two. Everything else takes the same time with and without generated
code: matrix products, operators with kernels of their own, copies, and single operations.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Set
from typing import NamedTuple

import torch
from torch.fx import GraphModule, Node

from fusewheel._torch.overloads import HigherOrderOperator, OpOverload, OpOverloadPacket
from fusewheel.compiler.cost.rates import Rates, rates
from fusewheel.compiler.cost.traffic import bytes_of, known, tensors_in, traffic
from fusewheel.compiler.ir.canonical import view
from fusewheel.compiler.ir.metadata import Size, shape_of, tensor_of, value_of

# Code is generated if it would save more than this part of a graph's time.
WORTHWHILE = 0.02
# If Dynamo comes with it: its guards take more of a token's time than this, and the first text
# waits for half a minute.
WORTHWHILE_WITH_GUARDS = 0.1

_PRODUCTS = frozenset({"linear", "matmul", "mm", "bmm", "addmm", "baddbmm"})
# They read or write only the rows that they pick, not the whole table.
_PICKING = frozenset({"embedding", "index_select", "gather", "index_copy_", "index_put_"})
# Inductor changes the memory format of their inputs.
_CONVOLUTIONS = tuple(f"conv{kind}{rank}d" for kind in ("", "_transpose") for rank in (1, 2, 3))
# They consist of several operations, or lack the tags that say what they are.
# fmt: off
_COMPOSED = frozenset((
    "softmax", "log_softmax", "layer_norm", "rms_norm", "group_norm", "batch_norm", "normalize",
    "cross_entropy", "nll_loss", "mse_loss", "dropout", "cumsum", "glu", "float", "to",
))
# fmt: on
_CALLS = ("call_function", "call_method")
_OPERATORS = OpOverload, OpOverloadPacket
_TAGS = {tag for name in ("pointwise", "reduction") if (tag := getattr(torch.Tag, name, None))}


class _Work(NamedTuple):
    """What a node does: bytes that it moves, and operations of a product; one call."""

    moved: float
    flops: float = 0.0

    def seconds(self, machine: Rates) -> float:
        working = max(self.moved / machine.bytes_per_second, self.flops / machine.flops_per_second)
        return machine.seconds_per_call + working


def gain(gm: GraphModule) -> float:
    """The part of a graph's time that a code generator could save, estimated from its metadata.

    Args:
        gm: a rewritten graph from Dynamo; bodies that it calls count too.

    Returns:
        a number from 0 to 1; 1 if a size is not known.
    """
    works: list[_Work] = []
    saved: list[_Work] = []
    for body in gm.modules():
        nodes = body.graph.nodes if isinstance(body, GraphModule) else ()
        moved = {node: traffic([node]) for node in nodes if node.op in _CALLS}
        if None in moved.values():
            return 1.0
        running = {node for node in moved if _runs(node, moved[node])}
        fusable = {node for node in running if _is_fusable(node)}
        for node in moved:
            if node not in running:
                continue
            work = _work(node, moved[node])
            works.append(work)
            if _name(node) in _CONVOLUTIONS:
                saved.append(work)
            elif node in fusable and (passed := _passed_on(node, fusable, running)) is not None:
                saved.append(passed)
    if not saved:
        return 0.0  # however fast the machine is
    machine = rates()
    total, less = (sum(work.seconds(machine) for work in found) for found in (works, saved))
    return min(less / total, 1.0)


def _work(node: Node, moved: int | None) -> _Work:
    """What a node does if it runs alone; `moved` is its traffic."""
    name, moved = _name(node), moved or 0
    if name in _PICKING:
        tensors = [t for n in (node, *node.all_input_nodes) if (t := tensor_of(n)) is not None]
        sizes = [bytes_of(t) or 0 for t in tensors if t.is_floating_point()]
        moved = 2 * min(sizes, default=0)
    return _Work(moved, _flops(node, name))


def _flops(node: Node, name: str) -> float:
    first, result = (shape_of(n) for n in (next(iter(node.all_input_nodes), None), node))
    if not first:
        return 0.0
    if name in _PRODUCTS:
        return 0.0 if result is None else 2.0 * _count(result) * _count(first[-1:])
    found = view(node)
    if found is not None and found.op == "attention":
        key = found.args[1]
    elif name == "attention":
        key = node.args[1]  # of the operator
    else:
        return 0.0
    return 4.0 * _count(first) * _count((shape_of(key) or first)[-2:-1])


def _passed_on(node: Node, fusable: Set[Node], running: Set[Node]) -> _Work | None:
    """What fusing a node with the users of its result would save; None if it would nothing."""
    users = list(_users(node, running))
    fused = sum(user in fusable for user in users)
    if not fused:
        return None
    size = sum(bytes_of(tensor) or 0 for tensor in tensors_in(value_of(node)))
    # None of these users would read the result; if they are all users, it is not written either.
    return _Work((fused + (fused == len(users))) * size)


def _users(node: Node, running: Set[Node]) -> Iterator[Node]:
    """The users of a node's value and of its views."""
    for user in node.users:
        if user.op != "output" and user not in running:
            yield from _users(user, running)
        else:
            yield user


def _runs(node: Node, moved: int | None) -> bool:
    """Whether a call does more than make a view; `moved` is its traffic."""
    writes = _name(node).endswith("_") or node.kwargs.get("inplace")
    return bool(writes or moved)


def _is_fusable(node: Node) -> bool:
    """Whether code could be generated for a node that runs."""
    if isinstance(node.target, _OPERATORS) and not str(node.target).startswith("aten."):
        return False  # has a kernel of its own
    if isinstance(node.target, HigherOrderOperator):
        return False  # calls bodies, which are counted
    name = _name(node)
    packet = getattr(torch.ops.aten, name, None)
    if packet is None:
        return name not in _PRODUCTS
    tags = (getattr(packet, overload).tags for overload in packet.overloads())
    return name.rstrip("_") in _COMPOSED or any(_TAGS.intersection(found) for found in tags)


def _name(node: Node) -> str:
    """The name of the operation in ATen, for most spellings."""
    target = node.target
    if isinstance(target, OpOverload):
        return str(target._schema.name).partition("::")[2]
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    name = name.strip("_") if name.startswith("__") else name
    return {"truediv": "div", "iadd": "add_", "imul": "mul_"}.get(name, name)


def _count(sizes: tuple[Size, ...]) -> int:
    return math.prod(known(size) or 1 for size in sizes)

"""Whether generating code for a rewritten graph pays: what a code generator could still fuse.

Two neighbours, both arithmetic or reductions of PyTorch's own, cost a call and the memory traffic
of what passes between them. All else takes the same time with and without a generator: matrix
products, operators with a kernel of their own, copies, and lone operations.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Set

import torch
from torch.fx import GraphModule, Node

from .canonical import view
from .measured import CALLED, COPIED, MULTIPLIED
from .metadata import Size, shape_of, tensor_of, value_of
from .traffic import bytes_of, known, tensors_in, traffic

# An unknown model may be slower than with a generator by as much, and not by more.
WORTHWHILE = 0.02

_PRODUCTS = frozenset({"linear", "matmul", "mm", "bmm", "addmm", "baddbmm"})
# They touch the rows they pick, not the whole table.
_PICKING = frozenset({"embedding", "index_select", "gather", "index_copy_", "index_put_"})
# A generator lays out their inputs anew.
_CONVOLUTIONS = tuple(f"conv{kind}{rank}d" for kind in ("", "_transpose") for rank in (1, 2, 3))
# Several operations in one, or without the tags that tell what they are.
# fmt: off
_COMPOSED = frozenset((
    "softmax", "log_softmax", "layer_norm", "rms_norm", "group_norm", "batch_norm", "normalize",
    "cross_entropy", "nll_loss", "mse_loss", "dropout", "cumsum", "glu", "float", "to",
))
# fmt: on
_OPERATORS = torch._ops.OpOverload, torch._ops.OpOverloadPacket
_TAGS = {tag for name in ("pointwise", "reduction") if (tag := getattr(torch.Tag, name, None))}


def gain(gm: GraphModule) -> float:
    """The part of a graph's time that a code generator could save, estimated from its metadata.

    Args:
        gm: a graph from Dynamo, rewritten already; bodies that it calls count too.

    Returns:
        between 0 and 1; 1 where a size is not known.
    """
    total = saved = 0.0
    for body in gm.modules():
        nodes = body.graph.nodes if isinstance(body, GraphModule) else ()
        fusable = {node for node in nodes if _is_fusable(node)}
        for node in nodes:
            seconds = _seconds(node)
            if seconds is None:
                return 1.0
            total += seconds
            if _name(node) in _CONVOLUTIONS:
                saved += seconds
            elif node in fusable:
                saved += _passed_on(node, fusable)
    return min(saved / total, 1.0) if total else 0.0


def _seconds(node: Node) -> float | None:
    """What a node takes, run by itself."""
    if node.op not in ("call_function", "call_method"):
        return 0.0
    moved = traffic([node])
    if moved is None:
        return None
    if not _runs(node):
        return 0.0
    name = _name(node)
    if name in _PICKING:
        tensors = [t for n in (node, *node.all_input_nodes) if (t := tensor_of(n)) is not None]
        sizes = [bytes_of(t) or 0 for t in tensors if t.is_floating_point()]
        moved = 2 * min(sizes, default=0)
    return CALLED + max(moved / COPIED, _flops(node, name) / MULTIPLIED)


def _flops(node: Node, name: str) -> float:
    first, result = (shape_of(n) for n in (next(iter(node.all_input_nodes), None), node))
    if not first or result is None:
        return 0.0
    if name in _PRODUCTS:
        return 2.0 * _count(result) * _count(first[-1:])
    found = view(node)
    if found is not None and found.op == "attention":
        return 4.0 * _count(first) * _count((shape_of(found.args[1]) or first)[-2:-1])
    return 0.0


def _passed_on(node: Node, fusable: Set[Node]) -> float:
    """What fusing a node with the users of its result would save."""
    users = list(_users(node))
    fused = sum(user in fusable for user in users)
    if not fused:
        return 0.0
    size = sum(bytes_of(tensor) or 0 for tensor in tensors_in(value_of(node)))
    # Read by none of these users; and not written, if there is no other.
    return CALLED + (fused + (fused == len(users))) * size / COPIED


def _users(node: Node) -> Iterator[Node]:
    """The users of a node's value, also those that see a view of it."""
    for user in node.users:
        if user.op != "output" and not _runs(user):
            yield from _users(user)
        else:
            yield user


def _runs(node: Node) -> bool:
    """Whether a node is more than a view."""
    if node.op not in ("call_function", "call_method"):
        return False
    writes = _name(node).endswith("_") or node.kwargs.get("inplace")
    return bool(writes or traffic([node]))


def _is_fusable(node: Node) -> bool:
    if not _runs(node):
        return False
    if isinstance(node.target, _OPERATORS) and not str(node.target).startswith("aten."):
        return False  # has a kernel of its own
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return False  # calls bodies, which are counted
    name = _name(node)
    packet = getattr(torch.ops.aten, name, None)
    if packet is None:
        return name not in _PRODUCTS
    tags = (getattr(packet, overload).tags for overload in packet.overloads())
    return name.rstrip("_") in _COMPOSED or any(_TAGS.intersection(found) for found in tags)


def _name(node: Node) -> str:
    """What ATen calls it, in most spellings."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return str(target._schema.name).partition("::")[2]
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    name = name.strip("_") if name.startswith("__") else name
    return {"truediv": "div", "iadd": "add_", "imul": "mul_"}.get(name, name)


def _count(sizes: tuple[Size, ...]) -> int:
    return math.prod(known(size) or 1 for size in sizes)

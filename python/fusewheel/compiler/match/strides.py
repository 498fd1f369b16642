"""Follow changed strides through a graph.

An operator may return other strides than the operations that it replaces. Later nodes depend on
them: ``view`` raises an error for some, elementwise operations pass them on, and the user sees
those of outputs. So the nodes behind changed strides are run again on their example values, until
the strides are the old ones again.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.fx import Node
from torch.fx.node import map_arg

from fusewheel._torch.fx import is_plain_fake, made_again
from fusewheel.compiler.ir.metadata import same_sizes, storage_of, value_of
from fusewheel.compiler.ir.pattern import Context, Refuse, is_assertion

_SIZES = frozenset({"size", "dim", "numel"})
_SIZE_FUNCTIONS = frozenset({torch.ops.aten.sym_size.int, torch.ops.aten.sym_numel.default})


def restrided(
    context: Context, node: Node, value: torch.Tensor, strides: Sequence[Any]
) -> torch.Tensor:
    """An example value of a node in the same memory, with other strides."""
    if is_plain_fake(value):
        return made_again(value, value, strides)
    with context.active(node):
        return value.as_strided(value.shape, strides)


def follow(
    context: Context, changed: dict[Node, torch.Tensor], *, outputs: bool = False
) -> dict[Node, Any]:
    """The example values of all nodes that changed strides reach.

    Args:
        context: the graph, before the rewrite.
        changed: for each value whose strides change, the same value with its new strides.
        outputs: whether outputs of the graph may have other strides; default False.

    Returns:
        the new example values, those of `changed` included.

    Raises:
        Refuse: if a node cannot work with the new strides, or an output would have them and must
            not.
    """
    found: dict[Node, Any] = dict(changed)
    todo: list[Node] = []
    moved = False  # whether a copy became a view, or the reverse
    for node in changed:
        _push(todo, node)
    while todo:
        node = heapq.heappop(todo)
        if node in found or is_assertion(node) or _reads_sizes(node):
            continue
        if node.op == "output":
            if outputs or all(
                _same_layout(value_of(n), v) for n, v in found.items() if node in n.users
            ):
                continue
            raise Refuse("the layout of an output would differ")
        old, new = value_of(node), _run(context, node, found)
        before, now = _shown(node, old, {}), _shown(node, new, found)
        if before != now:
            _check_unwritten(context, node)
            moved = True
        if before != now or not _same_layout(old, new) or (now and _memory(old) != _memory(new)):
            found[node] = new
            _push(todo, node)
    if moved:
        _check_results(context, found)
    return found


def _reads_sizes(node: Node) -> bool:
    """Whether a node only asks for sizes, which do not depend on strides."""
    if node.op == "call_method":
        return node.target in _SIZES
    return node.target in _SIZE_FUNCTIONS or (node.target is getattr and node.args[1] == "shape")


def _push(todo: list[Node], node: Node) -> None:
    for user in node.users:
        heapq.heappush(todo, user)


def _run(context: Context, node: Node, found: dict[Node, Any]) -> Any:
    def value(argument: Node) -> Any:
        known = found.get(argument, value_of(argument))
        if known is None:
            raise Refuse(f"the layout of the result would differ, and {node.name} is opaque")
        return known

    args, kwargs = map_arg(node.args, value), map_arg(node.kwargs, value)
    try:
        if node.op == "call_method" or (node.op == "call_function" and callable(node.target)):
            return context.compute(node, node.target, args, kwargs)
    except Exception as error:
        raise Refuse(f"{node.name} depends on the layout of the result") from error
    raise Refuse(f"the layout of the result would differ, and {node.name} is opaque")


def _tensors(value: object) -> list[torch.Tensor] | None:
    items: Sequence[object] = value if isinstance(value, (tuple, list)) else (value,)
    tensors = [item for item in items if isinstance(item, torch.Tensor)]
    return tensors if len(tensors) == len(items) else None


def _same_layout(old: object, new: object) -> bool:
    if old is None and new is None:  # a write such as setitem
        return True
    before, after = _tensors(old), _tensors(new)
    if before is None or after is None or len(before) != len(after):
        raise Refuse("the layout of the result would differ, and a number is computed from it")
    pairs = zip(before, after, strict=True)
    return all(same_sizes(a.stride(), b.stride()) for a, b in pairs)


def _check_unwritten(context: Context, node: Node) -> None:
    """Refuse if a view becomes a copy, or the reverse, and that memory is written to."""
    memory = [node, *node.all_input_nodes]
    if context.effects.conflicting(memory, node, None, frozenset()) is not None:
        raise Refuse(f"{node.name} would copy where it shares memory, or the reverse")


def _check_results(context: Context, found: dict[Node, Any]) -> None:
    """Refuse if what the caller gets shares memory where it did not before, or the reverse."""
    graph = context.graph
    nodes = [*graph.find_nodes(op="placeholder"), *graph.output_node().all_input_nodes]
    if _groups(map(value_of, nodes)) != _groups(found.get(node, value_of(node)) for node in nodes):
        raise Refuse("an output would share memory where it is a copy, or the reverse")


def _groups(values: Iterable[object]) -> list[int]:
    """For each tensor, the number of the first one with the same memory."""
    first: dict[int | None, int] = {}
    keys = [storage_of(tensor) for value in values for tensor in _tensors(value) or ()]
    return [first.setdefault(key, number) for number, key in enumerate(keys)]


def _memory(value: object) -> set[int | None]:
    return {storage_of(tensor) for tensor in _tensors(value) or ()}


def _shown(node: Node, value: object, found: dict[Node, Any]) -> list[Node]:
    """The inputs of a node whose memory its value shows."""
    own = _memory(value)
    inputs = node.all_input_nodes if own else ()
    return [n for n in inputs if not own.isdisjoint(_memory(found.get(n, value_of(n))))]

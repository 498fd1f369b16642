"""Finds out what an attention mask hides, from the operations that build it."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Node

from fusewheel.compiler.ir.canonical import View, rank_of, view
from fusewheel.compiler.ir.metadata import Size, dtype_of, same_size, same_sizes, shape_of
from fusewheel.compiler.ir.pattern import Context
from fusewheel.compiler.read.constants import constant, in_dtype
from fusewheel.compiler.read.positions import Position, position


@dataclass(frozen=True)
class Mask:
    """What a query at position q sees: the keys k for which all of this is true.

    Attributes:
        lower: ``k - q >= lower``; None without such a bound. A window over the last n keys has
            1 - n.
        upper: ``k - q <= upper``; None without such a bound. 0 is causal.
        padding: tensors that hide whole keys, the same for all queries of a batch.
        other: conditions and tensors that are not understood.
        hidden: what is added to the score of a hidden key: a finite number, ``-inf`` (also for
            boolean masks), or None if it is not known.
    """

    lower: int | None = None
    upper: int | None = None
    padding: tuple[Node, ...] = ()
    other: tuple[Node, ...] = ()
    hidden: float | None = -math.inf

    @property
    def kind(self) -> str:
        """The mask in words: ``none``, ``causal``, ``sliding window``, ``padding``, or several."""
        words = []
        if self.lower is not None:
            words.append(
                f"sliding window [{self.lower}, {'' if self.upper is None else self.upper}]"
            )
        elif self.upper is not None:
            words.append("causal" if self.upper == 0 else f"causal, {self.upper:+d}")
        if self.padding:
            words.append("padding")
        if self.other:
            words.append("arbitrary")
        return " + ".join(words) or "none"

    def shows_every_query_a_key(self, queries: Size, keys: Size) -> bool:
        """Whether every query sees a key, for these numbers of queries and keys."""
        if self.padding or self.other:
            return False
        lower = -math.inf if self.lower is None else self.lower
        upper = math.inf if self.upper is None else self.upper
        if lower == -math.inf and upper >= 0:
            return True  # the first key
        if lower <= 0 <= upper and same_size_or_less(queries, keys):
            return True  # the key at the query's own position
        last = max(lower, 0) <= upper < math.inf
        return last and same_size_or_less(queries + int(upper), keys)  # the last key it may see

    def both(self, other: Mask) -> Mask:
        """The mask that hides what either of the two hides."""
        lowers = [bound for bound in (self.lower, other.lower) if bound is not None]
        uppers = [bound for bound in (self.upper, other.upper) if bound is not None]
        return Mask(
            max(lowers, default=None),
            min(uppers, default=None),
            (*self.padding, *other.padding),
            (*self.other, *other.other),
        )


NO_MASK = Mask()


def same_size_or_less(a: Size, b: Size) -> bool:
    """Whether a <= b for every input; never adds a guard."""
    if isinstance(a, int) and isinstance(b, int):
        return a <= b
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return statically_known_true(a <= b)


def read_mask(context: Context, node: Node, user: Node, queries: Size, keys: Size) -> Mask:
    """What a mask of scaled_dot_product_attention hides.

    Args:
        context: the graph.
        node: the mask: boolean (True is seen), or added to the scores.
        user: the node that uses it.
        queries: the number of queries.
        keys: the number of keys.
    """
    reader, boolean = _Reader(context, queries, keys), _is_bool(node)
    if _is_written(context, node, user):
        return Mask(other=(node,), hidden=-math.inf if boolean else None)
    return reader.seen(node) if boolean else reader.added(node)


def read_hidden(context: Context, node: Node, user: Node, queries: Size, keys: Size) -> Mask:
    """The mask of ``scores.masked_fill(node, value)``: a key is seen where `node` is False."""
    if _is_written(context, node, user):
        return Mask(other=(node,))
    return _Reader(context, queries, keys).seen(node, False)


def _is_written(context: Context, node: Node, user: Node | None) -> bool:
    """Whether something writes to a mask, or to what it is made of, before `user`.

    Without `user`, whether anything in the graph does.
    """
    sources = _sources([node])
    if context.effects.conflicting(sources, min(sources), user, frozenset()) is not None:
        return True
    caller = context.caller
    outside = [caller.given[n] for n in sources if n in caller.given] if caller else []
    # A checkpoint runs its body again in the backward pass: nothing may write to them until then.
    return caller is not None and any(_is_written(caller.context, n, None) for n in outside)


def _sources(nodes: list[Node]) -> set[Node]:
    """The nodes, and all nodes that they are computed from."""
    found: set[Node] = set()
    while nodes:
        current = nodes.pop()
        if current not in found:
            found.add(current)
            nodes += current.all_input_nodes
    return found


_FLIPPED = {"le": "ge", "lt": "gt", "ge": "le", "gt": "lt"}
_NEGATED = {"le": "gt", "lt": "ge", "ge": "lt", "gt": "le"}


@dataclass(frozen=True)
class _Reader:
    context: Context
    queries: Size
    keys: Size

    def added(self, node: Any) -> Mask:
        """The mask of numbers that are added to the scores."""
        node = self._origin(node)
        found = view(node)
        unknown = Mask(other=(node,), hidden=None)
        if found is None:
            return unknown
        if _same_positions(found):
            mask = self.added(found.args[0])
            return replace(mask, hidden=mask.hidden and in_dtype(mask.hidden, node))
        condition: Any = None
        if found.op == "where":
            condition, shown, hidden = found.args
            seen = constant(shown) == 0
            if not seen:
                shown, hidden = hidden, shown
        elif found.op == "masked_fill":
            shown, condition, hidden = found.args
            seen = False
        elif found.op == "triu":
            shown, seen, hidden = 0, True, found.args[0]
        else:
            return unknown
        value = constant(hidden)
        if constant(shown) != 0 or value is None or value >= 0:
            return unknown
        if condition is None:
            mask = self._band(node, upper=found.attrs["diagonal"] - 1)
        else:
            mask = self.seen(condition, seen)
        return replace(mask, hidden=in_dtype(value, node))

    def seen(self, node: Any, true: bool = True) -> Mask:
        """The mask of a condition: a key is seen where it is equal to `true`."""
        node = self._origin(node)
        value = constant(node)
        if value is not None and bool(value) is true:
            return NO_MASK
        found = view(node)
        if found is None:
            return self._unknown(node)
        op = found.op
        if op == ("and" if true else "or") and all(map(_is_bool, found.args)):
            first, second = found.args
            return self.seen(first, true).both(self.seen(second, true))
        if op == "not" and _is_bool(found.args[0]):
            return self.seen(found.args[0], not true)
        if _same_positions(found) and _is_bool(found.args[0]):
            return self.seen(found.args[0], true)
        if op in ("tril", "triu", "cast"):
            return self._triangle(node, node, true)
        if op in ("eq", "ne") and constant(found.args[1]) == 0:
            return self._triangle(node, found.args[0], true is (op == "ne"))
        if op in _FLIPPED:
            return self._compared(node, op if true else _NEGATED[op], *found.args)
        return self._unknown(node)

    def _origin(self, node: Any) -> Any:
        """An earlier value with the same rows and columns; it may be in the calling graph."""
        while (found := self.context.outside(_without_new_dims(node))) is not node:
            node = found
        return node

    def _triangle(self, node: Node, source: Any, true: bool) -> Mask:
        """The mask of ``tril`` or ``triu`` of ones: a key is seen where its truth is `true`."""
        found = view(source)
        while found is not None and found.op == "cast":
            found = view(found.args[0])
        if found is None or found.op not in ("tril", "triu") or constant(found.args[0]) != 1:
            return self._unknown(node)
        diagonal = found.attrs["diagonal"]
        if found.op == "tril":
            bounds = {"upper": diagonal} if true else {"lower": diagonal + 1}
        else:
            bounds = {"lower": diagonal} if true else {"upper": diagonal - 1}
        return self._band(found.node, **bounds)

    def _compared(self, node: Node, op: str, left: Any, right: Any) -> Mask:
        a, b, bound = position(left), position(right), constant(right)
        if a is not None and a.start is not None and bound is not None and a.start >= bound:
            # No position is less than the first one.
            return NO_MASK if op == "ge" else self._unknown(node)
        if a is None or b is None:
            return self._unknown(node)
        if (a.dim, b.dim) == (-2, -1):
            left, right, a, b, op = right, left, b, a, _FLIPPED[op]
        if (a.dim, b.dim) != (-1, -2) or a.start is None or b.start is None:
            return self._unknown(node)
        # A single position is broadcast, so it is the same for all.
        counted = (shape_of(right) or ())[-2:-1] + (shape_of(left) or ())[-1:]
        if not same_sizes(counted, (self.queries, self.keys)):
            return self._unknown(node)
        apart = b.start - a.start  # k + a OP q + b is k - q OP b - a
        if op in ("le", "lt"):
            return self._band(node, upper=apart - (op == "lt"))
        return self._band(node, lower=apart + (op == "gt"))

    def _band(self, node: Node, *, lower: int | None = None, upper: int | None = None) -> Mask:
        """A mask with these bounds, if `node` has a row for each query and not one for all."""
        shape = shape_of(node) or ()
        fits = same_sizes(shape[-2:], (self.queries, self.keys))
        return Mask(lower, upper) if fits else self._unknown(node)

    def _unknown(self, node: Any) -> Mask:
        """A condition that is not understood; it is padding if it is the same for all queries."""
        shape = shape_of(node)
        if shape is not None and (len(shape) < 2 or same_size(shape[-2], 1)):
            return Mask(padding=(_source(node),))
        return Mask(other=(node,))


def _without_new_dims(node: Any) -> Any:
    """The mask in ``mask[None, None]``, which has the same rows and columns."""
    while isinstance(node, Node) and node.target is operator.getitem:
        base, index = node.args
        items = index if isinstance(index, tuple) else (index,)
        if any(item is not None for item in items) or (rank_of(base) or 0) < 2:
            break
        node = base
    return node


def _same_positions(found: View) -> bool:
    """Whether an operation keeps every element in its row and column."""
    if found.op in ("expand", "contiguous", "cast"):
        return True
    if found.op == "unsqueeze":
        return bool(found.attrs["dim"] < (rank_of(found.node) or 0) - 2)
    # A single row that is cut out would be broadcast to all queries.
    rows = [(shape_of(node) or ())[-2:] for node in (found.node, *found.args[:1])]
    return found.op == "slice" and same_sizes(*rows)


def _is_bool(node: object) -> bool:
    return dtype_of(node) == torch.bool


def _source(node: Node) -> Node:
    """The [batch, keys] tensor that is indexed or broadcast."""
    found = view(node)
    if found is not None and found.op in ("cast", "unsqueeze", "expand"):
        return _source(found.args[0]) if isinstance(found.args[0], Node) else node
    if getattr(node.target, "__name__", "") == "getitem" and isinstance(node.args[1], tuple):
        places = [position(item) for item in node.args[1]]
        source = node.args[0]
        if places == [Position(-4, 0), Position(-1, 0)] and isinstance(source, Node):
            return source
    return node

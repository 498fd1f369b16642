"""Spellings of operations that move, cut and join values; importing it fills the table."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Node

from fusewheel.compiler.ir.canonical import View, dimension, rank_of, spell
from fusewheel.compiler.ir.metadata import dtype_of, shape_of

_aten = torch.ops.aten


def _with_dim(op: str) -> Any:
    def build(node: Node, bound: dict[str, Any]) -> View | None:
        """The operands are the tensors."""
        tensors, rank = bound["tensors"], rank_of(node)
        if rank is None or not isinstance(tensors, (tuple, list)):
            return None
        dim = dimension(bound["dim"], rank)
        return None if dim is None else View(node, op, tuple(tensors), {"dim": dim})

    return build


def _unsqueeze(node: Node, bound: dict[str, Any]) -> View | None:
    rank = rank_of(node)
    dim = None if rank is None else dimension(bound["dim"], rank)
    return None if dim is None else View(node, "unsqueeze", (bound["input"],), {"dim": dim})


def _expand(node: Node, bound: dict[str, Any]) -> View:
    return View(node, "expand", (bound["input"],))  # the sizes are those of its metadata


def _slice_view(
    node: Node, base: object, dim: object, start: object, stop: object, step: object = 1
) -> View | None:
    """A slice with bounds inside the tensor; None if a bound or the result's size is symbolic."""
    shape, result = shape_of(base), shape_of(node)
    where = None if shape is None else dimension(dim, len(shape))
    if shape is None or where is None:
        return None
    for bound in (start, stop, step):
        if bound is not None and not isinstance(bound, int):
            return None
    if not isinstance(shape[where], int):
        # The size is not known: the slice has as many as the result, counted from the front.
        size, first = (result or (None,) * len(shape))[where], start or 0
        if (
            not isinstance(size, int)
            or not isinstance(first, int)
            or first < 0
            or step not in (None, 1)
        ):
            return None
        return View(
            node, "slice", (base,), {"dim": where, "start": first, "stop": first + size, "step": 1}
        )
    first, last, by = slice(start, stop, step).indices(int(shape[where]))
    return View(node, "slice", (base,), {"dim": where, "start": first, "stop": last, "step": by})


def _slice(node: Node, bound: dict[str, Any]) -> View | None:
    return _slice_view(
        node, bound["input"], bound["dim"], bound["start"], bound["end"], bound["step"]
    )


def _narrow(node: Node, bound: dict[str, Any]) -> View | None:
    start, length = bound["start"], bound["length"]
    if not isinstance(start, int) or not isinstance(length, int) or start < 0:
        return None
    return _slice_view(node, bound["input"], bound["dim"], start, start + length)


def _getitem(node: Node, bound: dict[str, Any]) -> View | None:
    base, index = bound["input"], bound["other"]
    if not isinstance(base, Node):
        return None
    if isinstance(index, int):
        return _piece(node, base, index)
    if isinstance(index, Node):
        is_number = dtype_of(index) == torch.int64
        return View(node, "take_rows", (base, index)) if is_number else None
    items = list(index) if isinstance(index, tuple) else [index]
    rank = rank_of(base)
    if rank is None or any(isinstance(item, (int, Node, list)) for item in items):
        return None
    if items.count(Ellipsis) > 1:
        return None
    if Ellipsis in items:
        at = items.index(Ellipsis)
        fill = rank - sum(isinstance(item, slice) for item in items)
        items[at : at + 1] = [slice(None)] * fill
    cut = [i for i, item in enumerate(items) if item != slice(None)]
    if len(cut) != 1:
        return None
    what = items[cut[0]]
    if what is None:
        return View(node, "unsqueeze", (base,), {"dim": cut[0]})
    if not isinstance(what, slice):
        return None
    return _slice_view(node, base, cut[0], what.start, what.stop, what.step)


def _piece(node: Node, pieces: Node, index: int) -> View | None:
    """One output of chunk or split, as a slice of what was split."""
    source = pieces.args[0] if pieces.args else pieces.kwargs.get("input")
    values = pieces.meta.get("example_value", pieces.meta.get("val"))
    if pieces.op == "call_method":
        known = pieces.target in ("chunk", "split")
    else:
        known = pieces.target in _SPLITS
    if (
        not known
        or not isinstance(values, (tuple, list))
        or not -len(values) <= index < len(values)
    ):
        return None
    dim = pieces.kwargs.get("dim", pieces.args[2] if len(pieces.args) > 2 else 0)
    rank = rank_of(source)
    where = None if rank is None else dimension(dim, rank)
    if where is None:
        return None
    sizes = [value.shape[where] for value in values]
    if not all(isinstance(size, int) for size in sizes):
        return None
    at = index % len(values)
    start = sum(sizes[:at])
    return _slice_view(node, source, where, start, start + sizes[at])


def _reshape(node: Node, bound: dict[str, Any]) -> View | None:
    # The metadata of the result has the shape, so the arguments are not needed.
    return View(node, "reshape", (bound["input"],))


def _contiguous(node: Node, bound: dict[str, Any]) -> View | None:
    # The memory format does not change the values.
    return View(node, "contiguous", (bound["input"],))


def _transpose(node: Node, bound: dict[str, Any]) -> View | None:
    """``t``, ``T``, ``mT`` and ``transpose`` as a permutation."""
    rank, name = rank_of(bound["input"]), bound.get("name")
    if rank is None or rank < 2 or name not in (None, "T", "mT"):
        return None
    if rank > 2 and name != "mT" and "dim0" not in bound:
        return None
    first, second = dimension(bound.get("dim0", -2), rank), dimension(bound.get("dim1", -1), rank)
    if first is None or second is None:
        return None
    order = list(range(rank))
    order[first], order[second] = second, first
    return View(node, "permute", (bound["input"],), {"dims": tuple(order)})


def _permute(node: Node, bound: dict[str, Any]) -> View | None:
    rank, given = rank_of(bound["input"]), bound["dim"]
    if not isinstance(given, (tuple, list)):
        given = [d for name, d in bound.items() if name != "input" and d is not None]
    if rank is None or len(given) != rank:
        return None
    return View(
        node, "permute", (bound["input"],), {"dims": tuple(dimension(d, rank) for d in given)}
    )


def _movedim(node: Node, bound: dict[str, Any]) -> View | None:
    rank = rank_of(bound["input"]) or 0
    source, target = dimension(bound["source"], rank), dimension(bound["destination"], rank)
    if source is None or target is None:
        return None
    order = [d for d in range(rank) if d != source]
    order.insert(target, source)
    return View(node, "permute", (bound["input"],), {"dims": tuple(order)})


_SPLITS = (
    torch.chunk,
    torch.split,
    torch.functional.split,
    _aten.chunk.default,
    _aten.split.Tensor,
    _aten.split.default,
    _aten.split.sizes,
    _aten.split_with_sizes.default,
)

# fmt: off
spell("cat", "tensors dim", functions=(torch.cat, torch.concat, torch.concatenate,
      _aten.cat.default), defaults={"dim": 0}, build=_with_dim("cat"))
spell("stack", "tensors dim", functions=(torch.stack, _aten.stack.default), defaults={"dim": 0},
      build=_with_dim("stack"))
spell("unsqueeze", "input dim", functions=(torch.unsqueeze, _aten.unsqueeze.default),
      methods="unsqueeze", build=_unsqueeze)
spell("expand", "input size b c d e f g h", methods="expand", functions=(_aten.expand.default,),
      defaults=dict.fromkeys("bcdefgh"), build=_expand)
spell("slice", "input dim start length", functions=(torch.narrow, _aten.narrow.default),
      methods="narrow", build=_narrow)
spell("slice", "input dim start end step", functions=(_aten.slice.Tensor,),
      defaults={"dim": 0, "start": None, "end": None, "step": 1}, build=_slice)
spell("slice", "input other", functions=(operator.getitem,), methods="__getitem__", build=_getitem)
spell("reshape", "input start_dim end_dim c d e f g h", methods="reshape view flatten",
      functions=(torch.reshape, torch.flatten, _aten.reshape.default, _aten.view.default,
      _aten.flatten.using_ints), defaults=dict.fromkeys(("start_dim", "end_dim", *"cdefgh")),
      build=_reshape)
spell("contiguous", "input memory_format", functions=(torch.clone, _aten.contiguous.default,
      _aten.clone.default), methods="contiguous clone", defaults={"memory_format": None},
      build=_contiguous)
spell("permute", "input", functions=(torch.t, _aten.t.default), methods="t", build=_transpose)
spell("permute", "input name", functions=(getattr,), build=_transpose)
spell("permute", "input dim0 dim1", functions=(torch.transpose, torch.swapaxes, torch.swapdims,
      _aten.transpose.int), methods="transpose swapaxes swapdims", build=_transpose)
spell("permute", "input dim b c d e f", functions=(torch.permute, _aten.permute.default),
      methods="permute", defaults=dict.fromkeys("bcdef"), build=_permute)
spell("permute", "input source destination", functions=(torch.movedim, torch.moveaxis,
      _aten.movedim.int), methods="movedim moveaxis", build=_movedim)
# fmt: on

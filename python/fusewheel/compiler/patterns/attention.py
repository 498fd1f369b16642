"""Attention on a CPU by `fusewheel.attention`: calls of PyTorch's attention, and attention that a
model writes out with a soft cap or with sinks.

PyTorch's attention computes all scores that a mask hides unless it is causal, and reads a mask of
their size. With a soft cap or sinks a model has to materialise all scores.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch.fx import Node

from fusewheel.compiler.cost import attention as cost
from fusewheel.compiler.ir.canonical import view
from fusewheel.compiler.ir.metadata import (
    Size,
    dtype_of,
    requires_grad,
    same_size,
    same_sizes,
    shape_of,
    tensor_of,
)
from fusewheel.compiler.ir.pattern import Builder, Context, Match, Pattern, Refuse, require
from fusewheel.compiler.read.attention import Attention, attention_of, repeated
from fusewheel.compiler.read.masks import Mask
from fusewheel.compiler.read.precision import number
from fusewheel.compiler.read.scores import Operand, is_extended
from fusewheel.compiler.read.window import hides_fully, window_of
from fusewheel.compiler.read.written import Masking, written_attention

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
Sizes = tuple[Size, ...]
Window = tuple[int, int]


@dataclass(frozen=True)
class _Call:
    """The arguments of the operator but for query, key and value."""

    window: Window
    scale: float
    softcap: float = 0.0
    sinks: Node | None = None

    def emit(self, builder: Builder, tensors: list[Node], bias: Node | None) -> Node:
        """Emit the operator; `tensors` are query, key and value."""
        sinks = self.sinks
        if sinks is not None and len(shape_of(sinks) or ()) != 1:
            sinks = builder.call(torch.flatten, sinks)
        while bias is not None and len(shape_of(bias) or ()) < 4:
            bias = builder.call(torch.ops.aten.unsqueeze.default, bias, 0)
        options = (*self.window, self.scale, self.softcap)
        results = builder.call(PATTERN.overload(), *tensors, sinks, bias, *options)
        return builder.item(results, 0)


def _match(context: Context, node: Node) -> Match | None:
    found = view(node)
    if found is None:
        return None
    return _called(context, node) if found.op == "attention" else _written(context, node)


def _called(context: Context, node: Node) -> Match | None:
    """A call of PyTorch's attention."""
    attention = attention_of(context, node)
    if attention is None:
        return None
    dtype, bias = _checked(node), attention.tensor
    require(attention.dropout == 0, "dropout may be active: other random numbers would be drawn")
    tensors = [attention.query, attention.key, attention.value]
    query, key, value = (shape_of(tensor) or () for tensor in tensors)
    _check_heads(query, key, value, attention.grouped)
    window, alone = _window(attention.mask, query[-2], key[-2], dtype)
    if alone:
        bias = None
    elif bias is None:
        raise Refuse("is_causal begins at the first key, and there may be more keys than queries")
    else:
        _check_bias(attention, bias)
    scale = number(query[-1] ** -0.5 if attention.scale is None else attention.scale)
    if scale is None:
        raise Refuse("the scale is not a Python number")
    # PyTorch's fast kernel takes neither of the two.
    slow = (attention.grouped and requires_grad(node)) or not same_size(query[-1], value[-1])
    _check_gain(node, query[-2], key[-2], window, bias, materialised=slow)
    copies: frozenset[Node] = frozenset()
    if not attention.grouped:
        tensors[1:], copies = _narrow(*tensors[1:])
    call = _Call(window, scale)
    return Match(
        inputs=(*tensors, *(() if bias is None else (bias,))),
        roots=(node,),
        interior=frozenset(),
        build=lambda builder: [call.emit(builder, tensors, bias)],
        absorbed=copies,
        # Autocast casts the operands of both calls in the same way.
        widened=frozenset({node}),
        saved=frozenset({node}),
    )


def _written(context: Context, node: Node) -> Match | None:
    """Attention around a softmax, with a soft cap or sinks."""
    found, rank = view(node), len(shape_of(node) or ())
    if found is None or rank < 2 or found.attrs["dim"] != rank - 1 or not is_extended(node):
        return None  # `softmax_attention` makes it a call of PyTorch's attention
    written = written_attention(context, node)
    if written is None:
        return None
    scores, masking, root = written.scores, written.masking, written.weighted.root
    dtype, key = _checked(root), scores.key
    query, keys = scores.query.sizes, key.sizes[-2]
    window, alone = _window(masking.mask, query[-2], keys, dtype)
    if alone and not masking.poisoned:
        masking = Masking(None)
    _check_gain(root, query[-2], keys, window, masking.tensor, materialised=True)
    copies: frozenset[Node] = frozenset()
    if rank == 4 and key.order is None and written.weighted.value.order is None:
        (own, value), copies = _narrow(key.node, written.weighted.value.node)
        scores = replace(scores, key=Operand(own))
        weighted = replace(written.weighted, value=Operand(value))
        written = replace(written, scores=scores, weighted=weighted)
    call = _Call(window, scores.scale, scores.softcap, scores.sinks)
    return replace(written, masking=masking).match(call.emit, copies)


def _checked(root: Node) -> torch.dtype:
    """The dtype of the result, if the operator pays with it."""
    tensor = tensor_of(root)
    if tensor is None or tensor.device.type != "cpu":
        raise Refuse("it is only replaced on a CPU")
    if tensor.dtype not in _DTYPES:
        raise Refuse(f"{tensor.dtype} is left to PyTorch's attention")
    return tensor.dtype


def _check_heads(query: Sizes, key: Sizes, value: Sizes, grouped: bool) -> None:
    fits = len(query) == len(key) == len(value) == 4
    require(fits, "query, key and value are not [batch, heads, length, features]")
    fits = same_sizes(query[:1], key[:1]) and same_sizes(key[:3], value[:3])
    if grouped:
        heads, own = query[1], key[1]
        fits &= isinstance(heads, int) and isinstance(own, int) and own > 0 and heads % own == 0
    else:
        fits &= same_size(query[1], key[1])
    require(fits, "query, key and value are broadcast")


def _check_bias(attention: Attention, bias: Node) -> None:
    """Refuse a mask that cannot be passed on, or of which gradients depend on rounding."""
    sizes = shape_of(bias) or ()
    query, keys = shape_of(attention.query) or (), (shape_of(attention.key) or ())[-2]
    shape, wanted = (*(1,) * (4 - len(sizes)), *sizes), (*query[:3], keys)
    fits = all(map(lambda a, b: same_size(a, 1) or same_size(a, b), shape, wanted))
    require(fits and len(shape) == 4, "the mask broadcasts the scores to another shape")
    dtype, mask = dtype_of(bias), attention.mask
    if dtype == torch.bool:
        return
    own = dtype_of(attention.query)
    require(dtype == own, f"the mask is {dtype}, the query is {own}")
    require(not requires_grad(bias), "the mask requires a gradient")
    known = mask.hidden == -math.inf or mask.shows_every_query_a_key(query[-2], keys)
    require(
        known or not requires_grad(attention.node),
        "the mask may hide all keys of a query with a finite number, and gradients differ then",
    )


def _window(mask: Mask, queries: Size, keys: Size, dtype: torch.dtype) -> tuple[Window, bool]:
    """The window of what a mask hides by position, and whether the mask hides nothing else."""
    window = window_of(mask, queries, keys) if hides_fully(mask, queries, keys, dtype) else None
    return window or (-1, -1), window is not None and not (mask.padding or mask.other)


def _narrow(key: Node, value: Node) -> tuple[list[Node], frozenset[Node]]:
    """Key and value before they are repeated for groups of queries, and the nodes that do it."""
    keys, values = repeated(key), repeated(value)
    if keys is None or values is None:
        return [key, value], frozenset()
    if not same_sizes((shape_of(keys[0]) or ())[:3], (shape_of(values[0]) or ())[:3]):
        return [key, value], frozenset()
    return [keys[0], values[0]], frozenset((*keys[1], *values[1]))


def _check_gain(
    root: Node,
    queries: Size,
    keys: Size,
    window: Window,
    bias: Node | None,
    materialised: bool,
) -> None:
    tensor = tensor_of(root)
    assert tensor is not None
    reason = cost.loss(
        queries,
        keys,
        window,
        tensor.dtype,
        training=requires_grad(root),
        masked=bias is not None,
        materialised=materialised,
    )
    require(reason is None, str(reason))


PATTERN = Pattern(
    name="attention",
    operator="fusewheel::attention",
    anchors=frozenset({"attention", "softmax"}),
    match=_match,
    order=-1,
)

"""The table of spellings behind `canonical.view`; importing it fills the table."""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import Node

from .canonical import View, rank_of, spell
from .metadata import dtype_of, same_sizes, shape_of, tensor_of, value_of

_aten = torch.ops.aten


def _dim(dim: object, rank: int) -> int | None:
    """A non-negative dimension."""
    if not isinstance(dim, int) or not -rank <= dim < rank:
        return None
    return dim % rank


def _cast(node: Node, bound: dict[str, Any]) -> View | None:
    # The metadata tells what the many forms of `to` do; a changed device is no cast.
    source, result = tensor_of(bound["input"]), tensor_of(node)
    if source is None or result is None or source.device != result.device:
        return None
    if bound.get("memory_format") is not None or bound.get("layout") is not None:
        return None
    if not same_sizes(source.shape, result.shape):  # `type()` without a dtype, for example
        return None
    return View(node, "cast", (bound["input"],), {"dtype": result.dtype})


def _mean(node: Node, bound: dict[str, Any]) -> View | None:
    rank, dims = rank_of(bound["input"]), bound["dim"]
    if rank is None or dims is None:
        return None
    wanted = tuple(_dim(d, rank) for d in (dims if isinstance(dims, (tuple, list)) else (dims,)))
    if bound["dtype"] not in (None, dtype_of(bound["input"])):
        return None
    return View(node, "mean", (bound["input"],), {"dims": wanted, "keepdim": bound["keepdim"]})


def _var(node: Node, bound: dict[str, Any]) -> View | None:
    rank, dims = rank_of(bound["input"]), bound["dim"]
    if rank is None or isinstance(dims, bool):  # `var(x, False)` is over everything
        return None
    wanted = tuple(_dim(d, rank) for d in (dims if isinstance(dims, (tuple, list)) else (dims,)))
    correction = bound["unbiased"] if bound["correction"] is None else bound["correction"]
    attrs = {"dims": wanted, "keepdim": bound["keepdim"], "correction": correction}
    return View(node, "var", (bound["input"],), attrs)


def _with_dim(op: str) -> Any:
    def build(node: Node, bound: dict[str, Any]) -> View | None:
        """The operands are the tensors."""
        tensors, rank = bound["tensors"], rank_of(node)
        if rank is None or not isinstance(tensors, (tuple, list)):
            return None
        dim = _dim(bound["dim"], rank)
        return None if dim is None else View(node, op, tuple(tensors), {"dim": dim})

    return build


def _unsqueeze(node: Node, bound: dict[str, Any]) -> View | None:
    rank = rank_of(node)
    dim = None if rank is None else _dim(bound["dim"], rank)
    return None if dim is None else View(node, "unsqueeze", (bound["input"],), {"dim": dim})


def _expand(node: Node, bound: dict[str, Any]) -> View:
    return View(node, "expand", (bound["input"],))  # the sizes are those of its metadata


def _attention(node: Node, bound: dict[str, Any]) -> View:
    tensors = ("query", "key", "value", "attn_mask")
    options = {name: value for name, value in bound.items() if name not in tensors}
    return View(node, "attention", tuple(bound[name] for name in tensors), options)


def _slice_view(
    node: Node, base: object, dim: object, start: object, stop: object, step: object = 1
) -> View | None:
    """A slice with bounds inside the tensor; None where the size or a bound is symbolic."""
    shape = shape_of(base)
    where = None if shape is None else _dim(dim, len(shape))
    if shape is None or where is None or not isinstance(shape[where], int):
        return None
    for bound in (start, stop, step):
        if bound is not None and not isinstance(bound, int):
            return None
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
    where = None if rank is None else _dim(dim, rank)
    if where is None:
        return None
    sizes = [value.shape[where] for value in values]
    if not all(isinstance(size, int) for size in sizes):
        return None
    at = index % len(values)
    start = sum(sizes[:at])
    return _slice_view(node, source, where, start, start + sizes[at])


def _normalized_shape(bound: dict[str, Any]) -> object:
    shape = bound["normalized_shape"]
    # `x.shape[-1:]` of a symbolic shape is a node.
    return value_of(shape) if isinstance(shape, Node) else shape


def _rms_norm(node: Node, bound: dict[str, Any]) -> View | None:
    shape = _normalized_shape(bound)
    if not isinstance(shape, (tuple, list)):
        return None
    attrs = {"rank": len(shape), "eps": bound["eps"]}
    return View(node, "rms_norm", (bound["input"], bound["weight"]), attrs)


def _layer_norm(node: Node, bound: dict[str, Any]) -> View | None:
    shape = _normalized_shape(bound)
    if not isinstance(shape, (tuple, list)):
        return None
    attrs = {"rank": len(shape), "eps": bound["eps"]}
    return View(node, "layer_norm", (bound["input"], bound["weight"], bound["bias"]), attrs)


def _linear(node: Node, bound: dict[str, Any]) -> View | None:
    return View(node, "linear", (bound["input"], bound["weight"], bound["bias"]))


def _silu(node: Node, bound: dict[str, Any]) -> View | None:
    return View(node, "silu", (bound["input"],), inplace=bool(bound["inplace"]))


def _gelu(node: Node, bound: dict[str, Any]) -> View | None:
    approximate = bound["approximate"]
    if approximate not in ("none", "tanh"):
        return None
    return View(node, "gelu", (bound["input"],), {"tanh": approximate == "tanh"})


def _reshape(node: Node, bound: dict[str, Any]) -> View | None:
    # The result's metadata has the shape; the arguments have nothing to add.
    return View(node, "reshape", (bound["input"],))


def _contiguous(node: Node, bound: dict[str, Any]) -> View | None:
    # Whatever the memory format, the values are those of the operand.
    return View(node, "contiguous", (bound["input"],))


def _transpose(node: Node, bound: dict[str, Any]) -> View | None:
    """``t``, ``T``, ``mT`` and ``transpose`` as a permutation."""
    rank, name = rank_of(bound["input"]), bound.get("name")
    if rank is None or rank < 2 or name not in (None, "T", "mT"):
        return None
    if rank > 2 and name != "mT" and "dim0" not in bound:
        return None
    first, second = _dim(bound.get("dim0", -2), rank), _dim(bound.get("dim1", -1), rank)
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
    return View(node, "permute", (bound["input"],), {"dims": tuple(_dim(d, rank) for d in given)})


def _movedim(node: Node, bound: dict[str, Any]) -> View | None:
    rank = rank_of(bound["input"]) or 0
    source, target = _dim(bound["source"], rank), _dim(bound["destination"], rank)
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
spell("mul", "input other", functions=(operator.mul, torch.mul, torch.multiply,
      _aten.mul.Tensor, _aten.mul.Scalar), methods="mul multiply __mul__ __rmul__")
spell("mul", "input other", functions=(operator.imul, _aten.mul_.Tensor),
      methods="mul_ multiply_ __imul__", inplace=True)
spell("div", "input other rounding_mode", functions=(operator.truediv, torch.div, torch.divide,
      torch.true_divide, _aten.div.Tensor, _aten.div.Scalar),
      methods="div divide true_divide __truediv__", defaults={"rounding_mode": None})
spell("add", "input other alpha", functions=(operator.add, torch.add, _aten.add.Tensor,
      _aten.add.Scalar), methods="add __add__ __radd__", defaults={"alpha": 1})
spell("add", "input other alpha", functions=(operator.iadd, _aten.add_.Tensor),
      methods="add_ __iadd__", defaults={"alpha": 1}, inplace=True)
spell("sub", "input other alpha", functions=(operator.sub, torch.sub, torch.subtract,
      _aten.sub.Tensor, _aten.sub.Scalar), methods="sub subtract __sub__", defaults={"alpha": 1})
spell("neg", "input", functions=(operator.neg, torch.neg, torch.negative, _aten.neg.default),
      methods="neg negative __neg__")
spell("square", "input", functions=(torch.square, _aten.square.default), methods="square")
spell("pow", "input other", functions=(operator.pow, torch.pow, _aten.pow.Tensor_Scalar),
      methods="pow __pow__")
spell("sqrt", "input", functions=(torch.sqrt, _aten.sqrt.default), methods="sqrt")
spell("rsqrt", "input", functions=(torch.rsqrt, _aten.rsqrt.default), methods="rsqrt")
spell("reciprocal", "input", functions=(torch.reciprocal, _aten.reciprocal.default),
      methods="reciprocal")
spell("sigmoid", "input", functions=(torch.sigmoid, torch.special.expit, F.sigmoid,
      _aten.sigmoid.default), methods="sigmoid")
spell("silu", "input inplace", functions=(F.silu, torch._C._nn.silu, _aten.silu.default),
      defaults={"inplace": False}, build=_silu)
spell("silu", "input", functions=(torch._C._nn.silu_, _aten.silu_.default), inplace=True)
spell("gelu", "input approximate", functions=(F.gelu, torch._C._nn.gelu, _aten.gelu.default),
      defaults={"approximate": "none"}, build=_gelu)
spell("tanh", "input", functions=(torch.tanh, F.tanh, _aten.tanh.default), methods="tanh")
spell("erf", "input", functions=(torch.erf, torch.special.erf, _aten.erf.default), methods="erf")
spell("mean", "input dim keepdim dtype", functions=(torch.mean, _aten.mean.dim), methods="mean",
      defaults={"dim": None, "keepdim": False, "dtype": None}, build=_mean)
spell("var", "input dim unbiased keepdim correction", functions=(torch.var, _aten.var.dim,
      _aten.var.correction), methods="var", defaults={"dim": None, "unbiased": True,
      "keepdim": False, "correction": None}, build=_var)
spell("cat", "tensors dim", functions=(torch.cat, torch.concat, torch.concatenate,
      _aten.cat.default), defaults={"dim": 0}, build=_with_dim("cat"))
spell("stack", "tensors dim", functions=(torch.stack, _aten.stack.default), defaults={"dim": 0},
      build=_with_dim("stack"))
spell("unsqueeze", "input dim", functions=(torch.unsqueeze, _aten.unsqueeze.default),
      methods="unsqueeze", build=_unsqueeze)
spell("expand", "input size b c d e f g h", methods="expand", functions=(_aten.expand.default,),
      defaults=dict.fromkeys("bcdefgh"), build=_expand)
spell("attention", "query key value attn_mask dropout_p is_causal scale enable_gqa",
      functions=(F.scaled_dot_product_attention, _aten.scaled_dot_product_attention.default),
      defaults={"attn_mask": None, "dropout_p": 0.0, "is_causal": False, "scale": None,
                "enable_gqa": False}, build=_attention)
spell("slice", "input dim start length", functions=(torch.narrow, _aten.narrow.default),
      methods="narrow", build=_narrow)
spell("slice", "input dim start end step", functions=(_aten.slice.Tensor,),
      defaults={"dim": 0, "start": None, "end": None, "step": 1}, build=_slice)
spell("slice", "input other", functions=(operator.getitem,), methods="__getitem__", build=_getitem)
spell("rms_norm", "input normalized_shape weight eps", functions=(F.rms_norm, torch.rms_norm,
      _aten.rms_norm.default), defaults={"weight": None, "eps": None}, build=_rms_norm)
spell("layer_norm", "input normalized_shape weight bias eps cudnn_enable",
      functions=(F.layer_norm, torch.layer_norm, _aten.layer_norm.default), defaults={
      "weight": None, "bias": None, "eps": 1e-5, "cudnn_enable": True}, build=_layer_norm)
spell("linear", "input weight bias", functions=(F.linear, torch._C._nn.linear,
      _aten.linear.default), defaults={"bias": None}, build=_linear)
spell("reshape", "input start_dim end_dim c d e f g h", methods="reshape view flatten",
      functions=(torch.reshape, torch.flatten, _aten.reshape.default, _aten.view.default,
      _aten.flatten.using_ints), defaults=dict.fromkeys(("start_dim", "end_dim", *"cdefgh")),
      build=_reshape)
spell("matmul", "input other", functions=(operator.matmul, torch.matmul, torch.mm,
      _aten.matmul.default, _aten.mm.default), methods="matmul mm __matmul__")
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
spell("cast", "input memory_format", methods="float half bfloat16 double",
      defaults={"memory_format": None}, build=_cast)
spell("cast", "input dtype device non_blocking copy layout pin_memory memory_format",
      methods="to type type_as", functions=(_aten._to_copy.default, _aten.to.dtype,
      _aten.to.dtype_layout, torch.ops.prims.convert_element_type.default),
      defaults=dict.fromkeys(("dtype", "device", "non_blocking", "copy", "layout", "pin_memory",
      "memory_format")), build=_cast)
# fmt: on

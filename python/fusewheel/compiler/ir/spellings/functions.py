"""The table of spellings behind `canonical.view`; importing it fills the table."""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import Node

from fusewheel._torch.builtins import grouped_mm, nn
from fusewheel.compiler.ir.canonical import View, dimension, rank_of, spell
from fusewheel.compiler.ir.metadata import dtype_of, same_sizes, tensor_of, value_of

_aten = torch.ops.aten


def _cast(node: Node, bound: dict[str, Any]) -> View | None:
    # The metadata says what the many forms of `to` do; a change of device is not a cast.
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
    wanted = tuple(
        dimension(d, rank) for d in (dims if isinstance(dims, (tuple, list)) else (dims,))
    )
    if bound["dtype"] not in (None, dtype_of(bound["input"])):
        return None
    return View(node, "mean", (bound["input"],), {"dims": wanted, "keepdim": bound["keepdim"]})


def _var(node: Node, bound: dict[str, Any]) -> View | None:
    rank, dims = rank_of(bound["input"]), bound["dim"]
    if rank is None or isinstance(dims, bool):  # `var(x, False)` is over everything
        return None
    wanted = tuple(
        dimension(d, rank) for d in (dims if isinstance(dims, (tuple, list)) else (dims,))
    )
    correction = bound["unbiased"] if bound["correction"] is None else bound["correction"]
    attrs = {"dims": wanted, "keepdim": bound["keepdim"], "correction": correction}
    return View(node, "var", (bound["input"],), attrs)


def _attention(node: Node, bound: dict[str, Any]) -> View:
    tensors = ("query", "key", "value", "attn_mask")
    options = {name: value for name, value in bound.items() if name not in tensors}
    return View(node, "attention", tuple(bound[name] for name in tensors), options)


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
spell("silu", "input inplace", functions=(F.silu, nn("silu"), _aten.silu.default),
      defaults={"inplace": False}, build=_silu)
spell("silu", "input", functions=(nn("silu_"), _aten.silu_.default), inplace=True)
spell("gelu", "input approximate", functions=(F.gelu, nn("gelu"), _aten.gelu.default),
      defaults={"approximate": "none"}, build=_gelu)
spell("tanh", "input", functions=(torch.tanh, F.tanh, _aten.tanh.default), methods="tanh")
spell("erf", "input", functions=(torch.erf, torch.special.erf, _aten.erf.default), methods="erf")
spell("mean", "input dim keepdim dtype", functions=(torch.mean, _aten.mean.dim), methods="mean",
      defaults={"dim": None, "keepdim": False, "dtype": None}, build=_mean)
spell("var", "input dim unbiased keepdim correction", functions=(torch.var, _aten.var.dim,
      _aten.var.correction), methods="var", defaults={"dim": None, "unbiased": True,
      "keepdim": False, "correction": None}, build=_var)
spell("attention", "query key value attn_mask dropout_p is_causal scale enable_gqa",
      functions=(F.scaled_dot_product_attention, _aten.scaled_dot_product_attention.default),
      defaults={"attn_mask": None, "dropout_p": 0.0, "is_causal": False, "scale": None,
                "enable_gqa": False}, build=_attention)
spell("rms_norm", "input normalized_shape weight eps", functions=(F.rms_norm, torch.rms_norm,
      _aten.rms_norm.default), defaults={"weight": None, "eps": None}, build=_rms_norm)
spell("layer_norm", "input normalized_shape weight bias eps cudnn_enable",
      functions=(F.layer_norm, torch.layer_norm, _aten.layer_norm.default), defaults={
      "weight": None, "bias": None, "eps": 1e-5, "cudnn_enable": True}, build=_layer_norm)
spell("grouped_mm", "input mat2 offs bias out_dtype", functions=(
      grouped_mm, getattr(F, "grouped_mm", None)), defaults={"bias": None, "out_dtype": None})
spell("linear", "input weight bias", functions=(F.linear, nn("linear"),
      _aten.linear.default), defaults={"bias": None}, build=_linear)
spell("matmul", "input other", functions=(operator.matmul, torch.matmul, torch.mm,
      _aten.matmul.default, _aten.mm.default), methods="matmul mm __matmul__")
spell("cast", "input memory_format", methods="float half bfloat16 double",
      defaults={"memory_format": None}, build=_cast)
spell("cast", "input dtype device non_blocking copy layout pin_memory memory_format",
      methods="to type type_as", functions=(_aten._to_copy.default, _aten.to.dtype,
      _aten.to.dtype_layout, torch.ops.prims.convert_element_type.default),
      defaults=dict.fromkeys(("dtype", "device", "non_blocking", "copy", "layout", "pin_memory",
      "memory_format")), build=_cast)
# fmt: on

"""Which operator a node is as a step of a program, with arguments in the order of its schema."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import Node

from fusewheel._torch.overloads import OpOverload, OpOverloadPacket
from fusewheel.compiler.ir.canonical import View, view
from fusewheel.compiler.ir.metadata import same_sizes, tensor_of
from fusewheel.compiler.ir.queries import is_of_one_query
from fusewheel.engine import attention, step_letters
from fusewheel.engine.growing import STEP, append

_aten = torch.ops.aten


@dataclass(frozen=True)
class Call:
    """A step.

    Attributes:
        operator: what it calls, see `fusewheel.engine.step_letters`.
        arguments: one for each argument of the operator. A tensor is a node, or a Python number
            that becomes a tensor without dimensions.
        results: how many tensors it returns.
        reshaped: whether the node shows the result in another shape.
        keeps: whether the node is the first of two equal results, and needs the second where it
            leaves the program; see `fusewheel.engine.growing.keep`.
    """

    operator: OpOverload | str
    arguments: tuple[Any, ...]
    results: int = 1
    reshaped: bool = False
    keeps: bool = False


# fmt: off
_NAMES = (
    "cos", "sin", "exp", "neg", "rsqrt", "sqrt", "reciprocal", "sigmoid", "silu", "tanh", "relu",
    "logical_not",
)
# fmt: on
_UNARY = {name: getattr(_aten, name).default for name in _NAMES}
_UNARY_FUNCTIONS = {
    function: name
    for name in _NAMES
    for room in (torch, F)
    if (function := getattr(room, name, None)) is not None
}
_COMPARISONS = {name: getattr(_aten, name).Tensor for name in ("eq", "ne", "lt", "le", "gt", "ge")}


def call_of(node: Node) -> Call | None:
    """The step that computes a node; None if programs do not know it."""
    target = node.target
    if isinstance(target, OpOverloadPacket) and target.overloads() == ["default"]:
        target = target.default
    found = view(node)
    call = None
    if found is not None and not found.inplace and found.op in _CANONICAL:
        call = _CANONICAL[found.op](node, found)
    elif target in (torch.addmm, _aten.addmm.default):
        call = Call("engine::addmm", node.args) if not node.kwargs else None
    elif target is append:
        call = Call(STEP, node.args, keeps=True)
    elif target is F.embedding:
        call = _embedding(node)
    elif not node.kwargs and len(node.args) == 1:
        name = str(target) if node.op == "call_method" else _UNARY_FUNCTIONS.get(target)
        if name in _UNARY:
            call = Call(_UNARY[name], node.args)
    if call is not None and step_letters(call.operator) is not None:
        return call
    if isinstance(target, OpOverload) and step_letters(target) is not None:
        return _by_schema(node, target)
    return None


def _by_schema(node: Node, overload: OpOverload) -> Call | None:
    schema = overload._schema
    found = []
    for position, argument in enumerate(schema.arguments):
        if position < len(node.args):
            found.append(node.args[position])
        elif argument.name in node.kwargs:
            found.append(node.kwargs[argument.name])
        elif argument.has_default_value():
            found.append(argument.default_value)
        else:
            return None
    return Call(overload, tuple(found), len(schema.returns))


def _unary(operator: OpOverload) -> Callable[[Node, View], Call]:
    return lambda node, found: Call(operator, (found.args[0],))


def _binary(operator: OpOverload | str) -> Callable[[Node, View], Call | None]:
    def build(node: Node, found: View) -> Call | None:
        left, *others = found.args
        if tensor_of(node) is None or tensor_of(left) is None:
            return None
        if all(_is_operand(left, other) for other in others):
            return Call(operator, found.args)
        return None

    return build


def dtype_of_number(number: float) -> torch.dtype:
    """The dtype of the tensor without dimensions that stands for a Python number."""
    return torch.int64 if type(number) is int else torch.float64


def _is_operand(left: Node, other: object) -> bool:
    """Whether a program can compute something of both; a number may promote otherwise there."""
    if isinstance(other, Node):
        return tensor_of(other) is not None
    if type(other) not in (int, float):
        return False
    tensor = tensor_of(left)
    assert tensor is not None
    sample = torch.empty([1] * tensor.dim(), dtype=tensor.dtype, device="meta")
    number = torch.empty([], dtype=dtype_of_number(other), device="meta")  # type: ignore[arg-type]
    return torch.result_type(sample, other) == torch.result_type(sample, number)  # type: ignore[call-overload]


def _sum(node: Node, found: View) -> Call | None:
    result = tensor_of(node)
    if result is None or not result.is_floating_point():
        return None
    return _binary("engine::add")(node, found)


def _linear(node: Node, found: View) -> Call:
    return Call(_aten.linear.default, found.args)


def _matmul(node: Node, found: View) -> Call:
    return Call(_aten.matmul.default, found.args)


def _cat(node: Node, found: View) -> Call | None:
    # An empty tensor of one dimension may be among the tensors.
    return Call(_aten.cat.default, (list(found.args), found.attrs["dim"]))


def _attention(node: Node, found: View) -> Call | None:
    options = dict(found.attrs)
    names = ("dropout_p", "is_causal", "scale", "enable_gqa")
    if set(options) != set(names) or options["dropout_p"]:
        return None
    if is_of_one_query(found):
        *tensors, mask = found.args
        if mask is None:
            return Call(attention.STEP, (*tensors, options["scale"]))
        return Call(attention.MASKED_STEP, (*tensors, mask, options["scale"]))
    operator = _aten.scaled_dot_product_attention.default
    return Call(operator, (*found.args, *(options[name] for name in names)))


def _softmax(node: Node, found: View) -> Call | None:
    result, source = tensor_of(node), tensor_of(found.args[0])
    if result is None or source is None:
        return None
    dtype = None if result.dtype == source.dtype else result.dtype
    return Call(_aten.softmax.int, (found.args[0], found.attrs["dim"], dtype))


def _cast(node: Node, found: View) -> Call:
    arguments = found.args[0], found.attrs["dtype"], None, None, None, False, None
    return Call(_aten._to_copy.default, arguments)


def _copy(node: Node, found: View) -> Call | None:
    """A copy in another shape, or in the order of memory."""
    source, result = tensor_of(found.args[0]), tensor_of(node)
    if source is None or result is None or source.dtype != result.dtype:
        return None
    ordered = torch.contiguous_format if result.is_contiguous() else torch.preserve_format
    reshaped = not same_sizes(source.shape, result.shape)
    if reshaped and not result.is_contiguous():
        return None
    return Call(_aten.clone.default, (found.args[0], ordered), reshaped=reshaped)


def _embedding(node: Node) -> Call | None:
    names = ("input", "weight", "padding_idx", "max_norm")
    given = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
    if given.get("max_norm") is not None:  # it writes to the weight
        return None
    # A padding index, and how gradients are summed, say nothing about the values.
    arguments = given["weight"], given["input"], -1, False, False
    return Call(_aten.embedding.default, arguments)


_CANONICAL: dict[str, Callable[[Node, View], Call | None]] = {
    "linear": _linear,
    "matmul": _matmul,
    "cat": _cat,
    "attention": _attention,
    "cast": _cast,
    "reshape": _copy,
    "contiguous": _copy,
    "softmax": _softmax,
    "mul": _binary(_aten.mul.Tensor),
    "div": _binary(_aten.div.Tensor),
    "add": _sum,
    **{name: _unary(_UNARY[name]) for name in _NAMES},
    **{name: _binary(operator) for name, operator in _COMPARISONS.items()},
}

"""A small program for each operator that programs may call, and for layers that are joined."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from fusewheel import ops
from fusewheel.dispatch.operator import Make
from fusewheel.engine import Program, ProgramWriter
from fusewheel.engine.growing import append
from fusewheel.engine.operators import _table
from fusewheel.quantization import quantize_int4, quantize_int8
from torch import Tensor

Case = tuple[Program, list[Tensor]]

_kernels = torch.ops.fusewheel
_WIDTH = 64


def every_step() -> dict[str, Case]:
    """By the name of the step; programs, each with its inputs."""
    pytorch, own, samples = _of_pytorch(), _of_engine(), _samples()
    found: dict[str, Case] = {"joined layers": _layers(), "rows by pointers": _rows()}
    for key in _table():
        name, _, overload = key.rpartition(".")
        room, _, operator = name.partition("::")
        if room == "engine":
            found[key] = one_step(name, *own[operator])
        elif room in ("aten", "fusewheel"):
            call = getattr(getattr(getattr(torch.ops, room), operator), overload or "default")
            arguments = pytorch[operator] if room == "aten" else samples[operator]
            found[key] = one_step(call, _by_position(call), arguments)
    return found


def _by_position(overload: Any) -> Callable[..., Any]:
    """An operator that takes all its arguments as a program has them."""
    schema = overload._schema.arguments
    named = [argument.name for argument in schema if argument.kwarg_only]

    def call(*arguments: Any) -> Any:
        first = len(schema) - len(named)
        return overload(*arguments[:first], **dict(zip(named, arguments[first:], strict=True)))

    return call


def one_step(step: Any, function: Callable[..., Any], arguments: Any) -> Case:
    """A program of one step.

    Args:
        step: an operator, or the name of a step that is none.
        function: computes the same.
        arguments: of both.
    """
    writer, inputs = ProgramWriter(), []

    def given(argument: Any) -> Any:
        if isinstance(argument, list):
            return [given(item) for item in argument]
        if not isinstance(argument, Tensor):
            return argument
        inputs.append(argument)
        return writer.input(argument.dtype, argument.shape, argument.stride())

    values = [given(argument) for argument in arguments]
    results = function(*arguments)
    made = [
        writer.result(result.dtype, result.shape, result.stride())
        for result in (results if isinstance(results, tuple) else (results,))
    ]
    writer.step(step, values, made, "model.py:1")
    return writer.finish(made), inputs


def _samples() -> dict[str, Any]:
    make = Make(seed=torch.initial_seed())
    return {operator.name: next(iter(operator.samples(make))) for operator in ops.operators()}


def _of_pytorch() -> dict[str, Any]:
    x, y = torch.randn(2, 3, 4).abs(), torch.randn(2, 3, 4)
    gain, square, ids = torch.randn(4), torch.randn(4, 4), torch.tensor([2, 0])
    heads = torch.randn(1, 2, 3, 4)
    unary = "cos exp logical_not neg reciprocal relu rsqrt sigmoid silu sin sqrt tanh"
    binary = "div eq ge gt le logical_and logical_or lt maximum minimum mul ne"
    return {
        **dict.fromkeys(unary.split(), (x,)),
        **dict.fromkeys(binary.split(), (x, y)),
        "_to_copy": (x, torch.bfloat16, None, None, None, False, None),
        "bmm": (x, y.mT.contiguous()),
        "cat": ([x, y], 1),
        "clone": (x.mT, torch.contiguous_format),
        "cumsum": (x, 1, torch.float64),
        "embedding": (square, ids, -1, False, False),
        "index_select": (x, 1, ids),
        "layer_norm": (x, (4,), gain, None, 1e-5, False),
        "linear": (x, square, gain),
        "matmul": (x, square),
        "rms_norm": (x, (4,), gain, None),
        "scaled_dot_product_attention": (heads, heads, heads, None, 0.0, True, 0.5, False),
        "softmax": (x, 2, None),
        "where": (x > y, x, y),
    }


def _of_engine() -> dict[str, tuple[Callable[..., Any], Any]]:
    x, square = torch.randn(3, 4), torch.randn(4, 4)
    query, keys = torch.randn(1, 2, 1, 4), torch.randn(1, 1, 70, 4)
    attention = torch.nn.functional.scaled_dot_product_attention
    past = append(torch.tensor([]), torch.randn(1, 2, 3, 4))
    mask = torch.arange(70).view(1, 1, 1, 70) > 20
    return {
        "add": (torch.add, (x, x)),
        "addmm": (torch.addmm, (x[0], x, square)),
        "append": (lambda old, new: (append(old, new),) * 2, (past, query)),
        "attention": (
            lambda q, k, v, scale: attention(q, k, v, scale=scale, enable_gqa=True),
            (query, keys, keys, 0.5),
        ),
        "masked_attention": (
            lambda q, k, v, m, scale: attention(q, k, v, m, scale=scale, enable_gqa=True),
            (query, keys, keys, mask, 0.5),
        ),
    }


def _layers() -> Case:
    """Layers of one row, each with a weight of another kind: two runs with the same input."""
    writer, inputs = ProgramWriter(), []

    def known(tensor: Tensor) -> int:
        inputs.append(tensor)
        return writer.input(tensor.dtype, tensor.shape, tensor.stride())

    def layer(operator: Any, *arguments: Any) -> tuple[Any, list[Any]]:
        return operator, [known(a) if isinstance(a, Tensor) else a for a in arguments]

    row = torch.float32, (1, _WIDTH), (_WIDTH, 1)
    x, bias = writer.input(*row), torch.randn(_WIDTH)
    inputs.append(torch.randn(1, _WIDTH))
    square = torch.randn(_WIDTH, _WIDTH)
    whole, grouped = quantize_int8(square), quantize_int8(square, 32)
    small = quantize_int4(square)
    codes = small.qweight, small.scales, small.zeros, 32
    layers = [
        layer(_kernels.linear.default, square, bias),
        layer(_kernels.linear.default, square.bfloat16(), None),
        layer(_kernels.linear_int8.default, whole.qweight, whole.scales, bias, False),
        layer(_kernels.linear_int8.default, grouped.qweight, grouped.scales, None, True),
        layer(_kernels.linear_int4.default, *codes, bias, False),
        layer(_kernels.linear_int4.default, *codes, None, True),
    ]
    _, blocks, kind, _ = _samples()["linear_blocks"]
    other = torch.randn(1, blocks.shape[1] * 32)
    wide, stored = known(other), known(blocks)
    results: list[int] = []
    for _ in range(2):
        results = []
        for operator, values in layers:
            results.append(writer.result(*row))
            writer.step(operator, (x, *values), (results[-1],))
        x = results[0]
    decoded = writer.result(torch.float32, (1, len(blocks)), (len(blocks), 1))
    writer.step(_kernels.linear_blocks.default, (wide, stored, kind, None), (decoded,))
    return writer.finish([*results, decoded]), inputs


def _rows() -> Case:
    """Norms and activations whose kernels are called with pointers, for any number of rows."""
    writer = ProgramWriter()
    count = writer.number("size", 0, 0)
    rows = torch.float32, (count, 8), (8, 1)
    x = writer.input(*rows)
    weight, bias = (writer.input(torch.float32, (8,), (1,)) for _ in range(2))
    values = [writer.result(*rows) for _ in range(7)]
    normal, first, total, second, sums, gated, last = values
    writer.step(_kernels.layer_norm.default, (x, weight, bias, 1e-5), (normal, None, None))
    given = normal, x, weight, bias, 1e-5
    writer.step(_kernels.add_layer_norm.default, given, (first, total, None, None))
    writer.step(
        _kernels.add_rms_norm.default, (first, total, weight, 1e-5, 1), (second, sums, None)
    )
    writer.step(_kernels.gelu_mul.default, (second, sums, True), (gated,))
    writer.step(_kernels.gelu.default, (gated, False), (last,))
    return writer.finish([total, last]), [torch.randn(3, 8), torch.randn(8), torch.randn(8)]

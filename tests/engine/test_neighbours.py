"""Linear layers of the same input, which a program computes together: the bits do not change."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from fusewheel.dispatch.operator import Make
from fusewheel.engine import Program, ProgramWriter
from fusewheel.ops.linear._blocks import FORMATS
from fusewheel.ops.linear.linear_blocks import random_blocks
from fusewheel.quantization import quantize_int4, quantize_int8
from torch import Tensor

ops = torch.ops.fusewheel
SIZE = 256


def weight(rows: int, columns: int = SIZE, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(rows, columns).to(dtype)


def int8(rows: int, dynamic: bool, group_size: int | None = None) -> list[Any]:
    found = quantize_int8(weight(rows), group_size)
    return [found.qweight, found.scales, torch.randn(rows), dynamic]


def int4(rows: int, dynamic: bool) -> list[Any]:
    found = quantize_int4(weight(rows))
    return [found.qweight, found.scales, found.zeros, 32, torch.randn(rows), dynamic]


def blocks(rows: int, kind: str, bias: Tensor | None = None) -> list[Any]:
    format = FORMATS[kind]
    make = Make(torch.float32, "cpu", torch.initial_seed())
    return [random_blocks(make, kind, rows, SIZE // format.weights), format.number, bias]


def apart(layer: list[Any]) -> list[Any]:
    """The same, with memory between the blocks of a row."""
    stored, *others = layer
    return [torch.cat((stored, stored), -1)[..., : stored.shape[-1]], *others]


# An operator, and what it takes behind x for each of three layers.
LAYERS: dict[str, tuple[Any, list[list[Any]]]] = {
    "linear": (ops.linear.default, [[weight(n), torch.randn(n)] for n in (96, 17, 300)]),
    "bfloat16": (ops.linear.default, [[weight(n, SIZE, torch.bfloat16), None] for n in (9, 64, 0)]),
    "wide input": (ops.linear.default, [[weight(n, SIZE, torch.float16), None] for n in (9, 64)]),
    # A transposed weight is copied first.
    "copied": (ops.linear.default, [[weight(SIZE, n).t(), None] for n in (64, 32, 8)]),
    "some copied": (ops.linear.default, [[weight(9), None], [weight(SIZE, 8).t(), None]] * 2),
    "int8": (ops.linear_int8.default, [int8(64, False), int8(16, False, 64), int8(30, True)]),
    "dynamic int8": (ops.linear_int8.default, [int8(n, True) for n in (64, 300, 16)]),
    "int4": (ops.linear_int4.default, [int4(n, False) for n in (64, 16, 300)]),
    "dynamic int4": (ops.linear_int4.default, [int4(n, True) for n in (64, 300, 16)]),
    "Q4_1": (ops.linear_blocks.default, [blocks(n, "Q4_1") for n in (64, 16, 300)]),
    "blocks": (
        ops.linear_blocks.default,
        [blocks(96, "Q4_K"), blocks(17, "Q8_0", torch.randn(17)), blocks(40, "NF4")],
    ),
    "blocks apart": (
        ops.linear_blocks.default,
        [blocks(9, "MXFP4"), apart(blocks(8, "Q4_1")), blocks(33, "FP8")],
    ),
}


def inputs_of(writer: ProgramWriter, layers: list[list[Any]]) -> list[list[Any]]:
    """What each layer takes behind x, its tensors as inputs of the program."""
    return [
        [writer.input(a.dtype, a.shape, a.stride()) if isinstance(a, Tensor) else a for a in layer]
        for layer in layers
    ]


def tensors_of(layers: list[list[Any]]) -> list[Tensor]:
    return [a for layer in layers for a in layer if isinstance(a, Tensor)]


def together(operator: Any, layers: list[list[Any]], dtype: torch.dtype) -> Program:
    """The layers of twice the first input, whose number of rows is open; the weights follow it."""
    writer = ProgramWriter()
    count = writer.number("size", 0, 0)
    x = writer.input(dtype, (count, SIZE), (SIZE, 1))
    values = inputs_of(writer, layers)
    doubled = writer.result(dtype, (count, SIZE), (SIZE, 1))
    writer.step("engine::add", (x, x), (doubled,))
    results = []
    for layer, given in zip(layers, values, strict=True):
        rows = layer[0].shape[0]
        results.append(writer.result(dtype, (count, rows), (rows, 1)))
        writer.step(operator, (doubled, *given), (results[-1],), f"model.py:{len(results)}")
    return writer.finish(results)


@pytest.mark.parametrize(("operator", "layers"), LAYERS.values(), ids=LAYERS)
def test_bits(operator: Any, layers: list[list[Any]]) -> None:
    dtype = torch.bfloat16 if layers[0][0].dtype == torch.bfloat16 else torch.float32
    program = together(operator, layers, dtype)
    weights = tensors_of(layers)
    for rows in (1, 3, 4, 5, 16, 17, 1, 0):
        x = torch.randn(rows, SIZE).to(dtype)
        expected = [operator(x + x, *layer) for layer in layers]
        for found, alone in zip(program(x, *weights), expected, strict=True):
            assert torch.equal(found, alone)


def spoilt(argument: Any) -> Iterator[Any]:
    """Others that an operator may refuse, or take."""
    if not isinstance(argument, Tensor):
        yield from () if argument is None else (64, 16, 0)
        return
    for dtype in (torch.float64, torch.bfloat16, torch.uint8, torch.int8):
        if dtype != argument.dtype:
            yield argument.to(dtype)
    yield from (argument[:-1], argument[:0], argument[None], argument.flatten())
    yield torch.stack((argument, argument + 1), -1)[..., 0]
    if argument.dim() == 2:
        yield from (argument[:, :-1], argument[:, :1], argument[:, 0], argument.t().clone().t())
        yield torch.cat((argument, argument), 1)
    if argument.dim() == 3:
        yield from (argument[:, :-1], argument[..., :-1], argument.transpose(0, 1))
        yield torch.cat((argument, argument), -1)[..., : argument.shape[-1]]
        yield torch.cat((argument, argument), 1)[:, : argument.shape[1]]
        yield argument[:1].expand(argument.shape)


SPOILT = {
    "linear": [weight(16), torch.randn(16)],
    "linear_int8": int8(16, False),
    "linear_int8 of groups": int8(16, True, 64),
    "linear_int4": int4(16, False),
    "linear_blocks": blocks(16, "Q4_1", torch.randn(16)),
    "linear_blocks of 256": blocks(16, "Q6_K"),
}


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("name", SPOILT)
def test_what_a_layer_is_given_may_be_wrong(name: str, rows: int) -> None:
    """Then it says so as its operator does; what that takes gives the same bits."""
    operator, sound = getattr(ops, name.split()[0]).default, SPOILT[name]
    x = torch.randn(rows, SIZE)
    errors = 0
    for i, argument in enumerate(sound):
        for other in spoilt(argument):
            layer = [*sound[:i], other, *sound[i + 1 :]]
            program = together(operator, [sound, layer], torch.float32)
            weights = tensors_of([sound, layer])
            try:
                expected = operator(x + x, *layer)
            except RuntimeError as error:
                errors += 1
                with pytest.raises(RuntimeError, match=re.escape(str(error).splitlines()[0])):
                    program(x, *weights)
            else:
                assert torch.equal(program(x, *weights)[1], expected), layer
    assert errors > 10


@pytest.mark.parametrize("name", ["linear", "int4", "dynamic int4", "dynamic int8", "Q4_1"])
def test_rows_that_lie_apart(name: str) -> None:
    """Each text's last row, as a model takes it for its logits."""
    operator, layers = LAYERS[name]
    writer = ProgramWriter()
    x = writer.input(torch.float32, (4, 3, SIZE), (3 * SIZE, SIZE, 1))
    values = inputs_of(writer, layers)
    last = writer.view(x, (4, 1, SIZE), (3 * SIZE, SIZE, 1), 2 * SIZE)
    results = []
    for layer, given in zip(layers, values, strict=True):
        rows = layer[0].shape[0]
        results.append(writer.result(torch.float32, (4, 1, rows), (rows, rows, 1)))
        writer.step(operator, (last, *given), (results[-1],))
    inputs = torch.randn(4, 3, SIZE)
    found = writer.finish(results)(inputs, *tensors_of(layers))
    for y, layer in zip(found, layers, strict=True):
        assert torch.equal(y, operator(inputs[:, -1:], *layer))


@pytest.mark.parametrize(
    ("operator", "codes", "scales", "says"),
    [
        (ops.linear_int8.default, (1, -(2**63)), (1, -1), "a negative size"),
        (ops.linear_int4.default, (1, 2**62), (1, 2**58), "does not fit 64 bits"),
    ],
)
def test_sizes_that_no_weight_can_have(operator: Any, codes: Any, scales: Any, says: str) -> None:
    """The sizes of a layer are read with its program, before any tensor is there."""
    writer = ProgramWriter()
    x, bias = (writer.input(torch.float32, (1,), (1,)) for _ in range(2))
    int4 = operator is ops.linear_int4.default
    stored = writer.input(torch.uint8 if int4 else torch.int8, codes, (1, 1))
    scale, zeros = (writer.input(torch.float32, scales, (1, 1)) for _ in range(2))
    given = (stored, scale, zeros, 32) if int4 else (stored, scale)
    result = writer.result(torch.float32, (1,), (1,))
    writer.step(operator, (x, *given, bias, False), (result,))
    program = writer.finish([result])
    with pytest.raises(RuntimeError, match=says):
        program(*(torch.zeros(1) for _ in range(5)))


def test_a_layer_whose_bias_another_one_computes() -> None:
    """It has the same input, but cannot be computed beside the other one, which comes first."""
    writer, dtype = ProgramWriter(), torch.bfloat16
    row = dtype, (1, 64), (64, 1)
    x, w = writer.input(*row), writer.input(dtype, (64, 64), (64, 1))
    first, second = writer.result(*row), writer.result(*row)
    linear = ops.linear.default
    writer.step(linear, (x, w, None), (first,))
    writer.step(linear, (x, w, writer.view(first, (64,), (1,))), (second,))
    inputs = torch.randn(1, 64, dtype=dtype), torch.randn(64, 64, dtype=dtype)
    bias = linear(*inputs, None)
    found = writer.finish([first, second])(*inputs)
    assert torch.equal(found[0], bias)
    assert torch.equal(found[1], linear(*inputs, bias[0]))


def test_a_layer_whose_result_nothing_uses() -> None:
    """The layers beside it are computed as ever."""
    writer, dtype, linear = ProgramWriter(), torch.float32, ops.linear.default
    x, w = writer.input(dtype, (1, SIZE), (SIZE, 1)), writer.input(dtype, (8, SIZE), (SIZE, 1))
    used = [writer.result(dtype, (1, 8), (8, 1)) for _ in range(2)]
    for result in (used[0], None, used[1]):
        writer.step(linear, (x, w, None), (result,))
    inputs = torch.randn(1, SIZE), weight(8)
    expected = linear(*inputs, None)
    for found in writer.finish(used)(*inputs):
        assert torch.equal(found, expected)


def test_an_error_names_the_line_of_its_layer() -> None:
    """And the layers that come afterwards are computed as ever."""
    layers = [[weight(8), None], [weight(8), torch.randn(9)], [weight(8), None]]
    operator = ops.linear.default
    program = together(operator, layers, torch.float32)
    weights = tensors_of(layers)
    x = torch.randn(1, SIZE)
    with pytest.raises(RuntimeError, match=r"(?s)linear: bias must .* from model\.py:2"):
        program(x, *weights)
    assert torch.equal(
        operator(x, weights[0], None), torch.ops.fusewheel.linear(x, weights[0], None)
    )
    torch.testing.assert_close(operator(x, weights[0], None), x @ weights[0].t())

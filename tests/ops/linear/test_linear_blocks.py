"""Layers whose weight is in stored blocks: what the bytes mean, and products with them."""

from __future__ import annotations

import re
from pathlib import Path

import fusewheel
import gguf
import pytest
import torch
from contracts import linear_blocks
from fusewheel.dispatch.operator import Make
from fusewheel.ops.linear._blocks import FORMATS, FP4, NF4, decode_blocks, kind_number
from fusewheel.ops.linear.linear_blocks import random_blocks
from fuzz.draw import Draw
from gguf import GGMLQuantizationType as Kind
from neighbours import assert_call_as_good_as_eager, compute
from oracle import DTYPES

HEADER = "packages/schema/include/fusewheel/linear/block_formats.h"
STORED_IN_GGUF = [name for name, format in FORMATS.items() if format.number < 1000]


def any_bytes(name: str, rows: int, count: int, seed: int = 0) -> torch.Tensor:
    """Blocks of random bytes, in which every code and every finite scale can occur."""
    format = FORMATS[name]
    generator = torch.Generator().manual_seed(seed)
    shape = rows, count, format.bytes
    blocks = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    for at in format.halves:
        # An exponent of five ones means infinity or NaN.
        high = blocks[..., at + 1]
        high[high & 0x7C == 0x7C] &= 0x83
    for at in format.singles:
        blocks[..., at + 3] = 0x3C
    if name == "MXFP4":
        blocks[..., 0].clamp_(max=250)
    return blocks


def decoded_by_gguf(blocks: torch.Tensor, name: str) -> torch.Tensor:
    return torch.from_numpy(gguf.dequantize(blocks.flatten(1).numpy(), Kind[name]))


def decoded_by_hand(blocks: torch.Tensor, name: str) -> torch.Tensor:
    """NF4, FP4 and FP8: the scale, then codes as `linear_blocks` describes them."""
    scale = blocks[..., :4].contiguous().view(torch.float32)
    codes = blocks[..., 4:].contiguous()
    if name == "FP8":
        return (scale * codes.view(torch.float8_e4m3fn).float()).flatten(1)
    halves = codes.unflatten(-1, (2, 1, 16))
    order = torch.cat((halves & 15, halves >> 4), -2).flatten(-3).long()
    table = torch.tensor(NF4 if name == "NF4" else FP4)
    return (scale * table[order]).flatten(1)


def decoded(blocks: torch.Tensor, name: str) -> torch.Tensor:
    return (decoded_by_gguf if name in STORED_IN_GGUF else decoded_by_hand)(blocks, name)


@pytest.mark.parametrize("name", FORMATS)
def test_every_weight_is_that_of_the_format(name):
    for seed in range(3):
        blocks = any_bytes(name, 37, 2, seed)
        if name == "FP8":
            blocks[..., 4:][blocks[..., 4:] & 127 == 127] = 1  # NaN, see below
        want = decoded(blocks, name)
        got = decode_blocks(blocks, FORMATS[name].number, torch.float32)
        assert torch.equal(got, want)
        assert torch.equal(got.signbit(), want.signbit())


def kernel_decoded(blocks: torch.Tensor, name: str, dtype: torch.dtype) -> torch.Tensor:
    rows, columns = blocks.shape[0], blocks.shape[1] * FORMATS[name].weights
    number = FORMATS[name].number
    forward = fusewheel.linear_blocks(torch.eye(columns, dtype=dtype), blocks, name).T
    backward = torch.ops.fusewheel.linear_blocks_backward(
        torch.eye(rows, dtype=dtype), blocks, number
    )
    few = fusewheel.linear_blocks(torch.eye(columns, dtype=dtype)[:5], blocks, name).T
    assert torch.equal(forward, backward)
    assert torch.equal(forward[:, :5], few)
    return forward


@pytest.mark.parametrize("summed", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", FORMATS)
def test_kernels_decode_the_same_bits(name, summed):
    """Products with the identity are exact."""
    for rows, count in ((37, 2), (3, 7)):
        blocks = any_bytes(name, rows, count, seed=4)
        if name == "FP8":
            blocks[..., 4:][blocks[..., 4:] & 127 == 127] = 1
        assert torch.equal(kernel_decoded(blocks, name, summed).float(), decoded(blocks, name))


def test_real_blocks_of_every_type_that_gguf_writes():
    weight = torch.randn(9, 512, generator=torch.Generator().manual_seed(5)) * 0.05
    written = 0
    for name in STORED_IN_GGUF:
        try:
            raw = gguf.quantize(weight.numpy(), Kind[name])
        except NotImplementedError:
            continue
        written += 1
        blocks = torch.from_numpy(raw).unflatten(1, (-1, FORMATS[name].bytes))
        want = torch.nn.functional.linear(torch.ones(3, 512), decoded_by_gguf(blocks, name))
        got = fusewheel.linear_blocks(torch.ones(3, 512), blocks, name)
        torch.testing.assert_close(got, want)
    assert written >= 6


def test_nan_codes_of_fp8_are_nan():
    blocks = random_blocks(Make(), "FP8", 2, 1)
    blocks[0, 0, 4] = 0x7F
    blocks[0, 0, 5] = 0xFF
    weight = decode_blocks(blocks, FORMATS["FP8"].number, torch.float32)
    assert weight[0, :2].isnan().all() and not weight[0, 2:].isnan().any()
    y = fusewheel.linear_blocks(torch.ones(20, 64), blocks, "FP8")
    assert y[:, 0].isnan().all() and not y[:, 1].isnan().any()


def test_the_tables_of_kernels_and_of_the_front_are_the_same():
    header = (Path(__file__).parents[3] / HEADER).read_text()
    numbers = {k: int(v) for k, v in re.findall(r"k(\w+) = (\d+),", header)}
    rows = re.findall(r'\{BlockKind::k(\w+), "(\w+)", (\d+), (\d+)\}', header)
    assert len(rows) == len(FORMATS) == len(numbers)
    for kind, name, weights, size in rows:
        format = FORMATS[name]
        assert kind == name
        assert kind_number("", name) == format.number
        assert (numbers[kind], int(weights), int(size)) == (
            format.number,
            format.weights,
            format.bytes,
        )


@pytest.mark.parametrize("name", STORED_IN_GGUF)
def test_sizes_and_numbers_are_those_of_gguf(name):
    format = FORMATS[name]
    assert Kind[name] == format.number
    assert gguf.GGML_QUANT_SIZES[Kind[name]] == (format.weights, format.bytes)


@pytest.mark.parametrize("name", FORMATS)
def test_any_number_of_rows(name):
    operator = {o.name: o for o in fusewheel.ops.operators()}["linear_blocks"]
    number = FORMATS[name].number
    count = 768 // FORMATS[name].weights
    blocks = random_blocks(Make(), name, 41, count)
    for dtype in DTYPES:
        for rows in (1, 2, 16, 17):
            x = Make(dtype, seed=rows)(rows, 768)
            arguments = (x, blocks, number, Make(dtype, seed=3)(41))
            assert_call_as_good_as_eager(
                compute, operator.overload, operator.reference, arguments, "output",
                contract=linear_blocks,
            )  # fmt: skip


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q5_1", "MXFP4"])
def test_a_single_row_with_a_rest_of_blocks(name):
    """Eight blocks share a step, and eight rows a vector of sums: one to nine blocks, 11 rows."""
    for count in range(1, 10):
        blocks = random_blocks(Make(), name, 11, count)
        weight = decode_blocks(blocks, FORMATS[name].number, torch.float64)
        x = Make(seed=count)(1, 32 * count)
        want = (x.double() @ weight.T).float()
        torch.testing.assert_close(fusewheel.linear_blocks(x, blocks, name), want)


@pytest.mark.parametrize("name", ["Q4_1", "Q6_K", "NF4"])
def test_rows_of_zeros_of_nan_and_of_tiny_numbers(name):
    blocks = random_blocks(Make(), name, 5, 512 // FORMATS[name].weights)
    kind = FORMATS[name].number
    weight = decode_blocks(blocks, kind, torch.float64)
    assert torch.equal(
        fusewheel.linear_blocks(torch.zeros(1, 512), blocks, name, torch.ones(5)),
        torch.ones(1, 5),
    )
    x = Make(seed=8)(1, 512)
    x[0, 40] = float("nan")
    assert fusewheel.linear_blocks(x, blocks, name).isnan().all()
    x[0, 40] = float("inf")
    assert not fusewheel.linear_blocks(x, blocks, name).isfinite().any()
    assert_call_as_good_as_eager(
        compute,
        lambda x: fusewheel.linear_blocks(x, blocks, name),
        lambda x: x @ weight.to(x.dtype).T,
        (Make(seed=9)(1, 512) * 1e-33,),
        name,
        contract=lambda x: linear_blocks(x, blocks, kind, None),
    )


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("name", FORMATS)
def test_codes_times_large_activations_may_overflow(name, rows):
    """Sums of activations, and products with codes alone, are beyond float32; the result is not."""
    format = FORMATS[name]
    blocks = random_blocks(Make(), name, 43, 512 // format.weights)
    for at in format.halves:
        blocks[..., at + 1] = 4  # scales and minima between 6e-5 and 1.2e-4
    for at in format.singles:
        blocks[..., at + 3] = 0x38  # between 3e-5 and 1.2e-4
    if name == "MXFP4":
        blocks[..., 0] = 127 - 13
    weight = decode_blocks(blocks, format.number, torch.float64)
    x = Make(seed=9)(rows, 512).abs() * 1e37
    assert (x.double() @ weight.T).abs().max() < torch.finfo(torch.float32).max
    assert_call_as_good_as_eager(
        compute,
        lambda x: fusewheel.linear_blocks(x, blocks, name),
        lambda x: x @ weight.to(x.dtype).T,
        (x,),
        name,
        contract=lambda x: linear_blocks(x, blocks, format.number, None),
    )


@pytest.mark.parametrize("number", [1.0, -1.0])
@pytest.mark.parametrize("code", [0, 255])
def test_the_largest_sums_of_a_single_row(code, number):
    """Eight products of Q6_K are one sum of 32 bits, which just holds them."""
    blocks = random_blocks(Make(), "Q6_K", 5, 2)
    blocks[..., :192] = code
    weight = decode_blocks(blocks, FORMATS["Q6_K"].number, torch.float64)
    x = torch.full((1, 512), number)
    want = (x.double() @ weight.T).float()
    torch.testing.assert_close(fusewheel.linear_blocks(x, blocks, "Q6_K"), want)


@pytest.mark.parametrize("name", ["Q4_K", "Q5_0"])
def test_one_large_activation_does_not_spoil_the_others(name):
    """Its block then has more digits; without them the error would be 1/65,000 of it."""
    blocks = random_blocks(Make(), name, 5, 256 // FORMATS[name].weights)
    weight = decode_blocks(blocks, FORMATS[name].number, torch.float64)
    x = Make(torch.bfloat16, seed=10)(1, 256)
    x[0, 3] = 1000
    error = fusewheel.linear_blocks(x, blocks, name, torch.zeros(5)).double() - (
        x.double() @ weight.T
    )
    assert (error.abs() <= 2**-8 * (x.double() @ weight.T).abs() + 1e-3).all()


def test_second_derivatives():
    blocks, number = random_blocks(Make(), "Q4_0", 5, 2), FORMATS["Q4_0"].number
    x = Make(torch.float64, requires_grad=True, seed=9)(2, 64)
    grad = Make(torch.float64, requires_grad=True, seed=9)(2, 5)

    def forward(x):
        return torch.ops.fusewheel.linear_blocks(x, blocks, number, None)

    def backward(grad):
        return torch.ops.fusewheel.linear_blocks_backward(grad, blocks, number)

    for function, value in ((forward, x), (backward, grad)):
        assert torch.autograd.gradcheck(function, value)
        assert torch.autograd.gradgradcheck(function, value)


def test_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match=r"linear_blocks: kind must be one of 'Q4_0', .*got 'Q9'"):
        fusewheel.linear_blocks(torch.ones(1, 32), torch.zeros(1, 1, 18, dtype=torch.uint8), "Q9")


def any_weight(d: Draw, rows: int):
    name = d.choice(*FORMATS)
    count = d.integer(0, 512 // FORMATS[name].weights)
    blocks = random_blocks(Make(seed=d.integer(0, 99)), name, rows, count)
    return d.lay(blocks, apart=True), FORMATS[name]


def any_arguments(d: Draw):
    blocks, format = any_weight(d, d.size(most=65))
    x = d.tensor(*d.shape(0, 2, 64), blocks.shape[1] * format.weights)
    return x, blocks, format.number, d.optional(len(blocks), dtype=d.stored())


def any_backward_arguments(d: Draw):
    grad = d.tensor(*d.shape(0, 2, 64), d.size(most=65))
    blocks, format = any_weight(d, grad.shape[-1])
    return grad, blocks, format.number


FUZZ = {"linear_blocks": any_arguments, "linear_blocks_backward": any_backward_arguments}

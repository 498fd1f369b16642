"""Weights keep their precision, whatever their size or that of their scales, and of activations.

The product of a scale and a step of the activations may be too small for a normal number, where the
product of both with a code is not.
"""

from __future__ import annotations

from collections.abc import Callable

import contracts
import fusewheel
import pytest
import torch
from fusewheel.dispatch.operator import Make
from fusewheel.ops.linear._blocks import FORMATS, decode_blocks
from fusewheel.ops.linear._quantized import decode_int4, decode_int8, rounded
from fusewheel.ops.linear.linear_blocks import random_blocks
from oracle import Errors, assert_allowed
from torch import Tensor
from torch.nn.functional import linear

COLUMNS = 256
OUT = 40
ROWS = 1, 3, 17
# Of few results the largest error is luck, so eager's errors in so many more rows count too.
MORE_ROWS = 16
WEIGHTS = 1e-36, 1e-20, 1e-3, 1e34
LEAST, LARGEST = torch.finfo(torch.float32).smallest_normal, torch.finfo(torch.float32).max
SIZES = 1e-42, LEAST, 1e-33, 3e-30, 1e-20, 1e-2, 1e3, 1e15, 1e36


def all_decades(
    weight: Tensor,
    multiply: Callable[[Tensor], Tensor],
    contract: Callable[[Tensor], Tensor],
    rows: int,
    activations: Callable[[Tensor], Tensor] = lambda x: x,
) -> None:
    """Compares the products with activations of every size, where most of them are in range.

    Args:
        weight: `[OUT, COLUMNS]`, float64.
        multiply: what is tried.
        contract: what each element may err by contract.
        rows: of activations.
        activations: what becomes of them first.
    """
    make = Make(seed=4)
    normal, more = make(rows, COLUMNS), make(MORE_ROWS, COLUMNS)
    tried = 0
    for size in SIZES:
        x = normal * (size / normal.abs().max())
        own = activations(x)
        exact = linear(own.double(), weight)
        if not exact.abs().median() > LEAST or not exact.abs().max() < LARGEST:
            continue
        tried += 1
        eager = linear(own, weight.float())
        errors = Errors(torch.float32, together=True)
        errors.add((eager.double() - exact).abs(), exact)
        for row in activations(more * (size / normal.abs().max())):
            true = linear(row.double(), weight)
            errors.add((linear(row, weight.float()).double() - true).abs(), true)
        assert_allowed(
            multiply(x), eager, exact, errors, f"activations up to {size:.0e}", beside=contract(x)
        )
    assert tried > 0


def stored(name: str) -> list[Tensor]:
    """Blocks with scales of every size that the format has."""
    format = FORMATS[name]
    blocks = random_blocks(Make(), name, OUT, COLUMNS // format.weights)
    if name == "MXFP4":
        powers = 0, 2, 30, 128, 160, 230, 248
        found = [blocks.clone() for _ in powers]
        for own, power in zip(found, powers, strict=True):
            own[..., 0] = power + blocks[..., 0] % 4
        return found
    dtype, places = (
        (torch.float16, format.halves) if format.halves else (torch.float32, format.singles)
    )
    largest = 1e3 if format.halves else 1e35
    found = []
    scale = largest
    while scale > torch.finfo(dtype).smallest_normal:
        own = blocks.clone()
        for at in places:
            numbers = own[..., at : at + dtype.itemsize].contiguous().view(dtype)
            numbers = (numbers.double() / 0.03 * scale).to(dtype)
            own[..., at : at + dtype.itemsize] = numbers.view(torch.uint8)
        found.append(own)
        scale /= 1e3 if format.halves else 1e12
    return found


@pytest.mark.parametrize("rows", ROWS[:2])
@pytest.mark.parametrize("name", FORMATS)
def test_stored_blocks(name, rows):
    kind = FORMATS[name].number
    for blocks in stored(name):
        all_decades(
            decode_blocks(blocks, kind, torch.float64),
            lambda x, blocks=blocks: fusewheel.linear_blocks(x, blocks, name),
            lambda x, blocks=blocks: contracts.linear_blocks(x, blocks, kind, None),
            rows,
        )


@pytest.mark.parametrize("rows", [*ROWS, 9])
@pytest.mark.parametrize(
    ("half", "sizes"),
    [(torch.bfloat16, WEIGHTS), (torch.float16, (1e-6, 1e-3, 1e3))],
    ids=["bfloat16", "float16"],
)
def test_half_types(half, sizes, rows):
    make = Make(seed=7)
    for size in sizes:
        weight = (make(OUT, COLUMNS) * size).to(half)
        all_decades(
            weight.double(),
            lambda x, own=weight: fusewheel.linear(x, own),
            lambda x: x.new_zeros(()),
            rows,
        )


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("group_size", [32, 128])
def test_int4(group_size, rows, dynamic):
    make = Make(seed=5)
    codes = torch.randint(0, 256, (OUT, COLUMNS // 2), dtype=torch.uint8)
    for size in WEIGHTS:
        scales = (make(OUT, COLUMNS // group_size).abs() + 0.1) * size
        zeros = -8 * scales
        arguments = codes, scales, zeros, group_size
        all_decades(
            decode_int4(codes, scales.double(), zeros.double(), group_size, torch.float64),
            lambda x, own=arguments: fusewheel.linear_int4(x, *own, None, dynamic),
            lambda x, own=arguments: contracts.linear_int4(x, *own, None, dynamic),
            rows,
            (lambda x: rounded(x, 32)) if dynamic else lambda x: x,
        )


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("groups", [(), (4,)], ids=str)
def test_int8(groups, rows, dynamic):
    make = Make(seed=6)
    codes = torch.randint(-127, 128, (OUT, COLUMNS), dtype=torch.int8)
    group_size = COLUMNS // 4 if groups else COLUMNS
    for size in WEIGHTS:
        scales = (make(OUT, *groups).abs() + 0.1) * size / 10
        all_decades(
            decode_int8(codes, scales.double(), torch.float64),
            lambda x, own=scales: fusewheel.linear_int8(x, codes, own, None, dynamic),
            lambda x, own=scales: contracts.linear_int8(x, codes, own, None, dynamic),
            rows,
            (lambda x: rounded(x, group_size)) if dynamic else lambda x: x,
        )

"""Kernels that read x by vectors get rows that a caller has laid at any address."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from cuda_emulated.test_linear_memory import OPERATORS
from fusewheel.dispatch.operator import Make
from fusewheel.ops.linear.linear_blocks import random_blocks
from torch import Tensor

ROWS, FEATURES, COLUMNS = 3, 6, 64
Q4_0 = 2


def int8(make: Make, columns: int) -> tuple[str, list[object]]:
    """Any number of columns."""
    codes = torch.randint(-128, 128, (FEATURES, columns)).to(torch.int8)
    return "linear_int8", [codes, make(FEATURES, 1), None, False]


def int4(make: Make, columns: int) -> tuple[str, list[object]]:
    """Codes of 4 bits."""
    codes = torch.randint(0, 256, (FEATURES, columns // 2)).to(torch.uint8)
    scales = make(FEATURES, columns // 32)
    return "linear_int4", [codes, scales, scales * -7.5, 32, None, False]


def grouped(make: Make, columns: int) -> tuple[str, list[object]]:
    """A group for each row, in blocks."""
    blocks = random_blocks(make, "Q4_0", ROWS * FEATURES, columns // 32)
    ends = torch.arange(1, ROWS + 1, dtype=torch.int32)
    return "grouped_linear_blocks", [blocks.unflatten(0, (ROWS, FEATURES)), Q4_0, ends, None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("weight", "columns"), [(int8, COLUMNS), (int8, 37), (int4, COLUMNS), (grouped, COLUMNS)]
)
@pytest.mark.parametrize(("skipped", "gap"), [(1, 0), (0, 3), (0, 16)])
def test_rows_at_any_address(
    weight: Callable[[Make, int], tuple[str, list[object]]],
    columns: int,
    dtype: torch.dtype,
    skipped: int,
    gap: int,
):
    make = Make(dtype)
    name, rest = weight(make, columns)
    memory = make(skipped + ROWS * (columns + gap))
    memory[skipped:].view(ROWS, columns + gap)[:, columns:] = torch.nan
    x: Tensor = memory[skipped:].view(ROWS, columns + gap)[:, :columns]
    want = OPERATORS[name].overload(x.clone(memory_format=torch.contiguous_format), *rest)
    assert not want.isnan().any()
    assert torch.equal(OPERATORS[name].overload(x, *rest), want)

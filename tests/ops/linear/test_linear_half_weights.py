"""float32 activations and a weight of half the width: no digit of either is lost.

On a GPU tensor cores multiply some of these shapes, by parts of the numbers.
"""

from __future__ import annotations

import fusewheel
import pytest
import torch
from fusewheel.dispatch.operator import Make
from neighbours import assert_call_as_good_as_eager, compute
from oracle import assert_as_good_as_eager
from torch import Tensor
from torch.nn.functional import linear

HALVES = (torch.bfloat16, torch.float16)
DIGITS = {torch.bfloat16: 8, torch.float16: 11}
ROWS = (4, 5, 8, 16, 17, 40, 128, 129)
LARGEST = torch.finfo(torch.float32).max
pytestmark = pytest.mark.parametrize("half", HALVES, ids=str)
REFERENCE = {o.name: o for o in fusewheel.ops.operators()}["linear"].reference


def judge(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> None:
    arguments = x, weight, bias
    assert_call_as_good_as_eager(compute, fusewheel.linear, REFERENCE, arguments, "output")


# A chunk of a tile has 64 columns, a strip of it 32.
@pytest.mark.parametrize("outputs", [1, 33, 70])
@pytest.mark.parametrize("features", [8, 24, 64, 72, 123, 255, 256, 504, 507, 1032])
@pytest.mark.parametrize("rows", ROWS)
def test_sums_err_as_those_of_float32(half, rows, features, outputs):
    judge(
        Make(seed=1)(rows, features), Make(half, seed=2)(outputs, features), Make(seed=3)(outputs)
    )


def bits(rows: int, columns: int) -> Tensor:
    """Numbers of all sizes: any finite bits of float32."""
    found = torch.randint(-(2**31), 2**31, (rows, columns)).to(torch.int32).view(torch.float32)
    return torch.where(found.isfinite(), found, LARGEST)


@pytest.mark.parametrize("rows", ROWS)
def test_every_number_is_its_own_product_with_one(half, rows):
    x = bits(rows, 40)
    x[0, :6] = torch.tensor([LARGEST, -LARGEST, 2.0**-149, -(2.0**-126), 2.0**-133 * 1.5, -0.0])
    got = fusewheel.linear(x, torch.eye(40, dtype=half))
    assert torch.equal(got, x)


@pytest.mark.parametrize("rows", ROWS)
def test_products_that_float32_holds_are_exact(half, rows):
    digits = DIGITS[half]
    x = torch.randint(-(2 ** (24 - digits)), 2 ** (24 - digits), (rows, 72)).float()
    x *= 2.0 ** torch.randint(-80, 80, (rows, 72))
    diagonal = torch.randint(1, 2**digits, (72,)) * 2.0 ** torch.randint(-24, -9, (72,))
    weight = torch.diag(diagonal).to(half)
    assert torch.equal(weight.diag().float(), diagonal)
    assert torch.equal(fusewheel.linear(x, weight), x * diagonal)


@pytest.mark.parametrize("rows", ROWS)
def test_a_product_by_itself_has_all_digits(half, rows):
    x, diagonal = Make(seed=10)(rows, 512), Make(half, seed=11)(512)
    got, eager = fusewheel.linear(x, torch.diag(diagonal)), x * diagonal.float()
    assert_as_good_as_eager(got, eager, x.double() * diagonal.double())


@pytest.mark.parametrize("rows", ROWS)
def test_activations_of_all_sizes_beside_each_other(half, rows):
    x = Make(seed=4)(rows, 64) * 2.0 ** torch.randint(-140, 90, (rows, 1))
    x[:, ::2] *= 2.0**-20
    weight = Make(half, seed=5)(48, 64)
    judge(x, weight)


@pytest.mark.parametrize("rows", ROWS)
def test_infinities_and_nan_are_those_of_pytorch(half, rows):
    x, weight = Make(seed=6)(rows, 72), Make(half, seed=7)(34, 72)
    # The last bit alone says that it is not an infinity.
    nan = torch.tensor(0x7F800001).to(torch.int32).view(torch.float32)
    x[0, 71], x[1, 3], x[1, 40] = torch.inf, torch.inf, -torch.inf
    x[2, 5], x[3, 9] = nan, -torch.inf
    weight[33, 3], weight[7, 9], weight[8, 20] = torch.inf, 0, torch.nan
    judge(x, weight)
    got = fusewheel.linear(x, weight)
    assert got[3, 7].isnan() and got[4:, 33].isinf().all() and not got[4:, :8].isnan().any()


@pytest.mark.parametrize("rows", ROWS)
def test_the_largest_numbers_do_not_overflow_on_their_way(half, rows):
    x = torch.full((rows, 64), LARGEST)
    x[1:, ::2] = -LARGEST  # sums are far below their terms
    x[2:] *= 0.9999
    weight = torch.full((40, 64), 1 / 64, dtype=half)
    weight[1] = -weight[0]
    weight[2, :2] = 0
    exact = linear(x.double(), weight.double())
    assert exact.float().isfinite().all()
    judge(x, weight)
    assert fusewheel.linear(x, weight).isfinite().all()


@pytest.mark.parametrize("rows", ROWS)
def test_a_sum_of_parts_may_overflow_where_the_result_does_not(half, rows):
    # All digits from the ninth on are ones: what is left, times 256, is twice as large.
    x = torch.full((rows, 8), 2.0**127 * (1 + 2.0**-7 - 2.0**-23))
    weight = torch.full((33, 8), 0.25, dtype=half)
    weight[:, 7] = 0
    judge(x, weight)
    assert fusewheel.linear(x, weight).isfinite().all()


def test_a_result_beyond_float32_is_infinite(half):
    x = torch.full((9, 64), LARGEST / 4)
    x[1] *= -1
    weight = torch.ones(33, 64, dtype=half)
    got = fusewheel.linear(x, weight)
    assert torch.equal(got, REFERENCE(x, weight, None))


@pytest.mark.parametrize("rows", [5, 16, 17])
def test_views_that_vectors_cannot_read(half, rows):
    wide, weight = Make(seed=8)(rows, 73), Make(half, seed=9)(40, 73)
    for begin in (0, 1):
        for stored in (0, 1):
            x, own = wide[:, begin : begin + 72], weight[:, stored : stored + 72]
            judge(x, own)

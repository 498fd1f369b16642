"""How much memory grouped products with weights in blocks take while they decode them."""

from __future__ import annotations

import pytest
import torch
from cuda_emulated.test_linear_memory import OPERATORS, PANEL, allocations
from fusewheel.dispatch.operator import Make
from fusewheel.ops.linear.linear_blocks import random_blocks
from nightly import NIGHTLY
from oracle import assert_as_good_as_eager
from torch import Tensor

COLUMNS = 1024
ROWS = 5
"""Of a group: with fewer, weights are decoded as they are multiplied."""
Q4_0 = 2


def weights(groups: int, features: int) -> Tensor:
    """In blocks; each group begins a row later than it had to."""
    stored = random_blocks(Make(), "Q4_0", groups * (features + 1), COLUMNS // 32)
    return stored.unflatten(0, (groups, features + 1))[:, 1:]


@pytest.mark.parametrize(
    ("groups", "features", "backward"),
    [
        (1, 8256, False),
        pytest.param(1, 8256, True, marks=NIGHTLY),
        pytest.param(5, 2048, False, marks=NIGHTLY),
        (5, 2048, True),
    ],
)
def test_weights_are_decoded_in_parts(groups: int, features: int, backward: bool):
    assert 4 * groups * features * COLUMNS > PANEL
    stored = weights(groups, features)
    ends = torch.arange(1, groups + 1, dtype=torch.int32) * ROWS
    operator = OPERATORS["grouped_linear_blocks" + "_backward" * backward]
    x = Make(seed=1)(groups * ROWS + 2, features if backward else COLUMNS)
    rest = (stored, Q4_0, ends, *(() if backward else (Make(seed=2)(groups, features),)))
    got, sizes = allocations(lambda: operator.overload(x, *rest))
    assert 0.9 * PANEL < max(sizes) <= PANEL
    assert sum(sizes) == max(sizes) + got.nbytes
    exact = [a.double() if isinstance(a, Tensor) and a.is_floating_point() else a for a in rest]
    want = operator.reference(x.double(), *exact)
    assert_as_good_as_eager(got, operator.reference(x, *rest), want)
    assert torch.equal(got[-2:], torch.zeros_like(got[-2:]))

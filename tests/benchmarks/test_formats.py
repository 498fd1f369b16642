"""The table of stored blocks: its weights are numbers, and a cell is judged by what it reads."""

from __future__ import annotations

import fusewheel
import pytest
import torch
from benchmarks import formats
from benchmarks.goals import FP32, READ
from fusewheel.ops.linear._blocks import FORMATS


@pytest.mark.parametrize("kind", FORMATS)
def test_random_blocks_are_finite(kind):
    y = fusewheel.linear_blocks(torch.randn(1, 512), formats.blocks_of(kind, 8, 512), kind)
    assert y.isfinite().all()
    assert y.any()


def test_copies_make_up_the_bytes_and_are_taken_in_turn():
    weight = torch.zeros(4, 4)
    copies = formats._copies(weight, 3 * weight.nbytes - 1)
    assert len(copies) == 3
    seen = []
    call = formats._calls(lambda x, own: seen.append(own), weight, copies)
    for _ in range(4):
        call()
    assert [id(own) for own in seen] == [id(own) for own in (*copies, copies[0])]


@pytest.mark.parametrize(("kind", "own", "met"), [("Q4_K", 0.1, True), ("Q4_K", 0.2, False)])
def test_a_goal_is_part_of_the_bandwidth(kind, own, met):
    times = {kind: own, FP32: 1.0, READ: 1.0}
    cell = formats.judge(kind, "float32", 8, 512, times, 0.08)
    assert cell.of_roof == pytest.approx(0.08 / own)
    assert list(cell.goals.values()) == [met]
    assert formats.panels([cell]) == {"1x512x8 against F.linear fp32": {kind: {"float32": 1 / own}}}

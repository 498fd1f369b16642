"""Which products are PyTorch's."""

from __future__ import annotations

import fusewheel
import fusewheel_cpu
import pytest
import torch

SMALL = 1448  # whose square is the largest one of at most 2^21 numbers


OF_FIVE_ROWS = (SMALL, SMALL + 1, SMALL + 2)


@pytest.mark.parametrize(
    ("rows", "size"),
    [(4, 64), (5, 64), (4, SMALL + 1), *((5, size) for size in OF_FIVE_ROWS), (129, SMALL + 2)],
)
def test_a_weight_in_bfloat16(rows: int, size: int) -> None:
    choices = fusewheel_cpu.choices()
    on = {name for name, value in choices.items() if value == "1"}
    own = "FUSEWHEEL_CPU_OWN_BFLOAT16" in on or rows == 4
    if size <= SMALL or (rows == 5 and size % 2 == 0):
        own |= "FUSEWHEEL_CPU_BF16" in on and "FUSEWHEEL_CPU_AMX" not in on
    x, weight = torch.randn(rows, size).bfloat16(), torch.randn(size, size).bfloat16()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        fusewheel.linear(x, weight)
    called = {event.key for event in profiler.key_averages()}
    assert ("aten::mm" in called) is not own, called

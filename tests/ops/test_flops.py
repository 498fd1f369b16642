"""What PyTorch's flop counter is told is what it counts in the reference."""

from __future__ import annotations

import torch
from fusewheel.dispatch.operator import Make, Operator
from torch.utils.flop_counter import FlopCounterMode


def counted(function, arguments):
    with FlopCounterMode(display=False) as counter:
        function(*arguments)
    return counter.get_total_flops()


def test_as_many_as_the_reference(operator: Operator):
    for arguments in operator.samples(Make(seed=36)):
        got = counted(operator.overload, arguments)
        assert got == counted(operator.reference, arguments)
        if operator.flops is not None and all(
            a.numel() for a in arguments if isinstance(a, torch.Tensor)
        ):
            assert got > 0

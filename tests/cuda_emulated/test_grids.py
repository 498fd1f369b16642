"""Blocks with more than one task: a grid ends at a million blocks, more than small calls have."""

from __future__ import annotations

import pytest
import torch
from fusewheel import ops
from fusewheel.dispatch.operator import Make, Operator
from oracle import tensors_of


@pytest.mark.parametrize("operator", ops.operators(), ids=lambda operator: operator.name)
def test_the_grid_changes_no_bit(operator: Operator, monkeypatch: pytest.MonkeyPatch):
    def results() -> list[torch.Tensor]:
        found = []
        for arguments in operator.samples(Make(seed=torch.initial_seed())):
            result = operator.overload(*arguments)
            at = operator.mutates
            found += tensors_of(result if at is None else arguments[at])
        return found

    whole = results()
    monkeypatch.setenv("FUSEWHEEL_EMULATION_BLOCKS", "2")
    torch.testing.assert_close(results(), whole, rtol=0, atol=0, equal_nan=True)

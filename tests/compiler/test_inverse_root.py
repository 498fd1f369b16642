"""What stands over the root: one, or what is normalised, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fusewheel
import pytest
import torch

assert fusewheel
Tensor = torch.Tensor

NUMERATORS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], bool]] = {
    "one": (lambda x, root: x * (1 / root), True),
    "one_float": (lambda x, root: x * (1.0 / root), True),
    "x": (lambda x, root: x / root, True),
    "keyword": (lambda x, root: x * torch.reciprocal(input=root), True),
    "two": (lambda x, root: x * (2 / root), False),
    "half": (lambda x, root: x * torch.div(torch.tensor(0.5), root), False),
    "upside_down": (lambda x, root: root / x, False),
    "over_itself": (lambda x, root: x * (root / root), False),
}


@pytest.mark.parametrize("numerator", NUMERATORS)
def test_numerators(compare: Any, numerator: str) -> None:
    over, replaced = NUMERATORS[numerator]

    def norm(x: Tensor, w: Tensor) -> Tensor:
        root = torch.sqrt(input=x.square().mean(-1, keepdim=True) + 1e-6)
        return over(x, root) * w

    x, w = torch.randn(3, 16, requires_grad=True), torch.randn(16, requires_grad=True)
    report = compare(norm, x, w)
    assert report.count("rms_norm") == replaced, report
    assert bool(report.refusals) != replaced, report

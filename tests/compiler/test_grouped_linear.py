"""Products of sorted rows, as PyTorch and transformers write them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

Tensor = torch.Tensor
ENDS = torch.tensor([4, 4, 12], dtype=torch.int32)


def operands(transposed: bool) -> tuple[Tensor, Tensor]:
    x = torch.randn(12, 16).requires_grad_()
    weight = torch.randn(3, 16, 8) if transposed else torch.randn(3, 8, 16)
    return x, weight.requires_grad_()


@pytest.mark.parametrize("transposed", [False, True])
def test_that_of_transformers(compare: Any, transposed: bool) -> None:
    pytest.importorskip("transformers.integrations.moe")

    def product(x: Tensor, weight: Tensor) -> Tensor:
        turned = weight if transposed else weight.transpose(-2, -1)
        found: Tensor = torch.ops.transformers.grouped_mm_fallback(x, turned, offs=ENDS)
        return found

    report = compare(product, *operands(transposed))
    assert report.counts() == {"grouped_linear": 1}, report


@pytest.mark.skipif(not hasattr(torch.nn.functional, "grouped_mm"), reason="an older torch")
def test_that_of_torch(compare: Any) -> None:
    def product(x: Tensor, weight: Tensor) -> Tensor:
        return torch.nn.functional.grouped_mm(x, weight.transpose(-2, -1), offs=ENDS)

    x, weight = (t.detach().bfloat16() for t in operands(False))
    with torch.no_grad():
        report = compare(product, x, weight, tolerance=2e-2)
    assert report.counts() == {"grouped_linear": 1}, report


@pytest.mark.skipif(not hasattr(torch.nn.functional, "grouped_mm"), reason="an older torch")
def test_groups_of_columns_are_left_alone(compare: Any) -> None:
    def product(x: Tensor, weight: Tensor) -> Tensor:
        return torch.nn.functional.grouped_mm(x, weight, offs=8 * ENDS // 3)

    x, weight = torch.randn(16, 32).bfloat16(), torch.randn(32, 8).bfloat16()
    with torch.no_grad():
        report = compare(product, x, weight, tolerance=2e-2)
    assert report.counts() == {}, report
    assert "dimensions" in str(report.refusals), report

"""What half types have that float32 has not: sums that two lanes share, shares in two parts."""

from __future__ import annotations

import fusewheel
import pytest
import torch
import torch.nn.functional as F
from oracle import assert_as_good_as_eager
from torch import Tensor

HALVES = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("features", [8, 16, 24, 264, 7])
def test_slices_are_summed_wherever_a_warp_ends(dtype: torch.dtype, features: int):
    """Three slices of 1024 rows. Two lanes write each other's sums: the second may have none."""
    x = torch.randn(2500, features).to(dtype).double()
    weight = torch.randn(3, features).to(dtype).double()
    target = torch.randint(3, (2500,))

    def gradient(kind: torch.dtype, own: bool) -> Tensor:
        given = x.to(kind), weight.to(kind).requires_grad_()
        if own:
            loss = fusewheel.linear_cross_entropy(*given, target, reduction="sum")
        else:
            loss = F.cross_entropy(F.linear(*given), target, reduction="sum")
        return torch.autograd.grad(loss, given[1])[0]

    exact = gradient(torch.float64, own=False)
    assert_as_good_as_eager(gradient(dtype, own=True), gradient(dtype, own=False), exact)


def attend(q: Tensor, k: Tensor, v: Tensor, **options: object) -> Tensor:
    """A result without its logsumexp."""
    found = fusewheel.attention(q, k, v, **options)
    assert isinstance(found, Tensor)
    return found


@pytest.mark.parametrize("size", [40, 128])
@pytest.mark.parametrize("factor", [0.01, 8.0])
@pytest.mark.parametrize("options", ["plain", "causal", "window", "cap", "sinks", "bias"])
def test_attention_in_float16_errs_as_sums_in_float32(options: str, factor: float, size: int):
    heads, keys = 2, 150
    q, k, v = (torch.randn(1, heads, keys, size) * factor for _ in range(3))
    given = [t.half() for t in (q, k, v)]
    more = {
        "plain": {},
        "causal": {"causal": True},
        "window": {"window": (70, 3)},
        "cap": {"softcap": 5.0},
        "sinks": {"sinks": torch.randn(heads).half()},
        "bias": {"bias": torch.randn(1, heads, keys, keys).half()},
    }[options]

    def result(dtype: torch.dtype) -> Tensor:
        wide = {
            name: value.to(dtype) if isinstance(value, Tensor) else value
            for name, value in more.items()
        }
        return attend(*(t.to(dtype) for t in given), **wide)

    exact = result(torch.float64)

    def error(found: Tensor) -> float:
        return (found.double() - exact).abs().max().item()

    assert error(attend(*given, **more)) <= 1.05 * error(result(torch.float32).half())

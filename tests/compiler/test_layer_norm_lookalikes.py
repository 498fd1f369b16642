"""What only looks like a layer norm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from compiler.test_layer_norm import Tensor, _inputs, _mean, _normalised, _x


def test_an_rms_norm_of_centred_values_is_one(compare: Any) -> None:
    """Means over different dimensions: no layer norm, but the rest is still an RMSNorm."""

    def f(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        centred = x - x.mean(0, keepdim=True)
        return centred * torch.rsqrt(_mean(centred.pow(2)) + 1e-5) * w + b

    assert compare(f, *_inputs()).counts() == {"rms_norm": 1}


def _over(
    x: Tensor, *, unbiased: bool = False, keepdim: bool = True, eps: Any = 1e-5, other: Any = 0
) -> Tensor:
    root = torch.sqrt(x.var(-1, unbiased=unbiased, keepdim=keepdim) + eps)
    return (x - _mean(x + other)) / (root if keepdim else root[..., None])


LOOKALIKES: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], str]] = {
    "unbiased": (lambda x, w: _over(x, unbiased=True) * w, "not divided by the size"),
    "default_var": (
        lambda x, w: (x - _mean(x)) * torch.rsqrt(x.var(-1, keepdim=True) + 1e-5) * w,
        "not divided by the size",
    ),
    "no_keepdim": (lambda x, w: _over(x, keepdim=False) * w, "with keepdim"),
    "eps_is_a_tensor": (lambda x, w: _over(x, eps=w.mean().abs()) * w, "epsilon"),
    "shifted_mean": (lambda x, w: _over(x, other=1) * w, "minus its mean"),
    "not_centred": (
        lambda x, w: x / torch.sqrt(x.var(-1, unbiased=False, keepdim=True) + 1e-5) * w,
        "minus its mean",
    ),
    "sum_of_the_two": (
        lambda x, w: (
            (x + _mean(x)) / torch.sqrt(x.var(-1, unbiased=False, keepdim=True) + 1e-5) * w
        ),
        "minus its mean",
    ),
    "mean_of_another_dimension": (
        lambda x, w: (
            (x - x.mean(0, True)) / torch.sqrt(x.var(-1, unbiased=False, keepdim=True) + 1e-5) * w
        ),
        "minus its mean",
    ),
    "variance_of_another_dimension": (
        lambda x, w: (x - _mean(x)) / torch.sqrt(x.var(0, unbiased=False, keepdim=True) + 1e-5) * w,
        "the last dimension alone",
    ),
    "variance_of_another_tensor": (
        lambda x, w: (
            (x - _mean(x)) / torch.sqrt((x * 2).var(-1, unbiased=False, keepdim=True) + 1e-5) * w
        ),
        "the variance is of another tensor",
    ),
    "half_statistics": (
        lambda x, w: _normalised(x.bfloat16()) * w.bfloat16(),
        "computed in torch.bfloat16",
    ),
    "half_mean": (
        lambda x, w: (lambda h: _normalised(h) * w)(x - _mean(x.bfloat16())),
        "",
    ),
    "statistics_of_two_dtypes": (
        lambda x, w: (lambda h: (h - _mean(h)) / torch.sqrt(
            h.double().var(-1, unbiased=False, keepdim=True).float() + 1e-5))(x) * w,
        "",
    ),
    "function_over_two": (
        lambda x, w: F.layer_norm(x, (4, 4)) * w,
        "more than the last dimension",
    ),
    "function_with_wide_weight": (
        lambda x, w: F.layer_norm(x.bfloat16(), (4,), w, w).float(),
        "the input is torch.bfloat16, the weight is torch.float32",
    ),
    "mean_is_used": (
        lambda x, w: (lambda m: (x - m) / torch.sqrt(
            x.var(-1, unbiased=False, keepdim=True) + 1e-5) * w + m)(_mean(x)),
        "is also used by",
    ),
    "variance_is_used": (
        lambda x, w: (lambda v: (x - _mean(x)) / torch.sqrt(v + 1e-5) * w + v)(
            x.var(-1, unbiased=False, keepdim=True)),
        "is also used by",
    ),
    "root_is_used": (
        lambda x, w: (lambda r: (x - _mean(x)) * r * w + r)(
            torch.rsqrt(x.var(-1, unbiased=False, keepdim=True) + 1e-5)),
        "is used 2 times",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", LOOKALIKES)
def test_lookalikes(compare: Any, case: str) -> None:
    function, reason = LOOKALIKES[case]
    replaced = case == "half_mean"
    report = (compare if replaced else compare.bits)(function, _x(4, 4), _x(4), inner="eager")
    assert report.count("layer_norm") == replaced, report
    found = [refusal for refusal in report.refusals if refusal.pattern == "layer_norm"]
    assert not reason or any(reason in refusal.reason for refusal in found), report


def test_variance_of_everything(compare: Any) -> None:
    """The False in ``var(False)`` is no dimension."""

    def f(x: Tensor, w: Tensor) -> Tensor:
        return (x - _mean(x)) / torch.sqrt(x.var(False) + 1e-5) * w

    report = compare(f, _x(4, 4), _x(4))
    assert report.counts() == {}
    assert not any(refusal.pattern == "layer_norm" for refusal in report.refusals), report

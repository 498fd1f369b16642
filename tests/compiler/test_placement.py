"""An operator with several results goes before the first use of any of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fusewheel
import pytest
import torch
import torch.nn.functional as F

assert fusewheel
Tensor = torch.Tensor

MODES: dict[str, Callable[[], Any]] = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}


def _inputs() -> tuple[Tensor, ...]:
    shapes = ((3, 8), (3, 8), (8,))
    return tuple(torch.randn(*shape, requires_grad=True) for shape in shapes)


@pytest.mark.parametrize("mode", MODES)
def test_first_use_under_another_mode(compare: Any, mode: str) -> None:
    """Put where the sum is looked at, the norm would run without gradients."""

    def f(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        with MODES[mode]():
            first = x.abs().amax()
        h = x + r
        with MODES[mode]():
            peak = first + h.abs().amax()
        return F.rms_norm(h, (8,), w, 1e-5), peak.clone()

    report = compare(f, *_inputs(), inner="eager")
    assert report.counts() == {"rms_norm": 1}, report
    assert "mode" in report.refusals[0].reason


def test_first_use_in_between(compare: Any) -> None:
    def f(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        h = x + r
        peak = h.abs().amax()
        return F.rms_norm(h, (8,), w, 1e-5), peak

    assert compare(f, *_inputs()).counts() == {"add_rms_norm": 1}


def test_input_known_too_late(compare: Any) -> None:
    def f(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        h = x + r
        peak = h.abs().amax()
        return F.rms_norm(h, (8,), w * 2, 1e-5), peak

    report = compare(f, *_inputs())
    assert report.counts() == {"rms_norm": 1}, report
    assert "is known" in report.refusals[0].reason

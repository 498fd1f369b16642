"""Linear layers in half precision: taken over where PyTorch's own are slow, and only there."""

from __future__ import annotations

from typing import Any

import fusewheel
import pytest
import torch
import torch.nn.functional as F

assert fusewheel
Tensor = torch.Tensor


@pytest.fixture(autouse=True)
def _without_avx512(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")


def _half(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(*shape).to(dtype).requires_grad_()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bias", [True, False])
def test_training(compare: Any, dtype: torch.dtype, bias: bool) -> None:
    operands = [_half(3, 5, 16, dtype=dtype), _half(8, 16, dtype=dtype)]
    if bias:
        operands.append(_half(8, dtype=dtype))
    report = compare(lambda *args: F.linear(*args), *operands, tolerance=2e-2)
    assert report.counts() == {"linear": 1}, report


def test_a_module_in_eval_mode(compare: Any) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
    model = model.bfloat16().eval()
    with torch.no_grad():
        report = compare(model, _half(7, 16).detach(), tolerance=2e-2)
    assert report.counts() == {"linear": 2}


def test_a_changed_weight_is_seen() -> None:
    layer = torch.nn.Linear(16, 8, bias=False).bfloat16()
    compiled = torch.compile(layer, backend="fusewheel", fullgraph=True)
    x = torch.randn(4, 16).bfloat16()
    with torch.no_grad():
        first = compiled(x)
        layer.weight.mul_(2)
        assert torch.equal(compiled(x), 2 * first)


def test_one_graph_for_every_batch_size(compare: Any) -> None:
    weight = _half(8, 16).detach()
    compiled, recorder = compare.compile(lambda x: F.linear(x, weight), dynamic=True)
    for rows in (3, 5, 64):
        x = torch.randn(rows, 16).bfloat16()
        torch.testing.assert_close(compiled(x), F.linear(x, weight), rtol=2e-2, atol=2e-2)
    assert recorder.report().counts() == {"linear": 1}


def test_float32_is_left_alone(compare: Any) -> None:
    report = compare(lambda x, w: F.linear(x, w), torch.randn(4, 16), torch.randn(8, 16))
    assert report.counts() == {} and not report.refusals


def test_autocast_is_refused(compare: Any) -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return F.linear(x, w)

    report = compare(function, torch.randn(4, 16), torch.randn(8, 16), tolerance=2e-2)
    assert report.counts() == {}


def test_a_cpu_with_fast_half_precision_keeps_its_own(
    compare: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    report = compare(lambda x, w: F.linear(x, w), _half(4, 16), _half(8, 16), tolerance=2e-2)
    assert report.counts() == {}
    assert "fast on this CPU" in report.refusals[0].reason

"""Linear layers: taken over where PyTorch's own are slow, and only there."""

from __future__ import annotations

import copy
from typing import Any

import fusewheel
import pytest
import torch
import torch.nn.functional as F
from oracle import assert_as_good_as_call

assert fusewheel
Tensor = torch.Tensor


@pytest.fixture(autouse=True)
def _without_avx512(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEWHEEL_COMPILER_AVX512", "0")
    # A processor on which PyTorch's own products of few rows are slow too.
    monkeypatch.setenv("FUSEWHEEL_COMPILER_MAKER", "AuthenticAMD")
    monkeypatch.setenv("FUSEWHEEL_COMPILER_MKL", "1")


def _half(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(*shape).to(dtype).requires_grad_()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bias", [True, False])
def test_training(compare: Any, dtype: torch.dtype, bias: bool) -> None:
    operands = [_half(3, 5, 16, dtype=dtype), _half(8, 16, dtype=dtype)]
    if bias:
        operands.append(_half(8, dtype=dtype))
    report = compare(lambda *args: F.linear(*args), *operands)
    assert report.counts() == {"linear": 1}, report


def test_a_module_in_eval_mode(compare: Any) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
    model = model.bfloat16().eval()
    with torch.no_grad():
        exact = copy.deepcopy(model).double()
        report = compare(model, _half(7, 16).detach(), exact=exact)
    assert report.counts() == {"linear": 2}


def test_a_weight_that_is_no_matrix_and_operands_of_two_dtypes(compare: Any) -> None:
    def narrow(x: Tensor, weight: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return F.linear(x, weight)

    x = _half(3, 16).detach()
    row, other = _half(16).detach(), _half(8, 16, dtype=torch.float16).detach()
    for function, weight, reason in (
        (F.linear, row, "the weight is not a matrix"),
        (narrow, other, "its operands are"),
    ):
        report = compare.bits(lambda x, w, f=function: f(x, w), x, weight)
        assert report.counts() == {}, report
        assert reason in str(report.refusals), report


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
        assert_as_good_as_call(compiled(x), F.linear, x, weight)
    assert recorder.report().counts() == {"linear": 1}


@pytest.mark.parametrize("shape", [(1, 128), (2, 2, 128), (128,)])
@pytest.mark.parametrize("bias", [True, False])
def test_few_rows_in_float32(compare: Any, shape: tuple[int, ...], bias: bool) -> None:
    operands = [torch.randn(*shape), torch.randn(512, 128)] + [torch.randn(512)] * bias
    report = compare(lambda *args: F.linear(*args), *operands)
    assert report.counts() == {"linear": 1}, report


@pytest.mark.parametrize(
    "operands",
    [
        (torch.randn(5, 128), torch.randn(512, 128)),  # rows
        (torch.randn(0, 128), torch.randn(512, 128)),
        (torch.randn(4, 16), torch.randn(8, 16)),  # a small weight
        (torch.randn(4, 128), torch.randn(128, 512).T),  # one that would have to be copied
        (torch.randn(4, 128, dtype=torch.float64), torch.randn(512, 128, dtype=torch.float64)),
        (torch.randn(4, 128), torch.randn(512, 128, requires_grad=True)),
    ],
)
def test_other_float32_is_left_alone(compare: Any, operands: tuple[Tensor, Tensor]) -> None:
    report = compare(lambda x, w: F.linear(x, w), *operands)
    assert report.counts() == {} and not report.refusals


def test_any_number_of_rows_in_float32(compare: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEWHEEL_COMPILER_AVX512", "1")
    layer = torch.nn.Linear(128, 512)
    compiled, recorder = compare.compile(layer, dynamic=True)
    for rows in (3, 5, 64):
        x = torch.randn(rows, 128)
        torch.testing.assert_close(compiled(x), layer(x))
    assert recorder.report().counts() == {"linear": 1}


def test_few_rows_of_any_number(compare: Any) -> None:
    layer = torch.nn.Linear(128, 512).requires_grad_(False)
    compiled, recorder = compare.compile(layer, dynamic=True)
    for rows in (3, 5, 64):
        x = torch.randn(rows, 128)
        torch.testing.assert_close(compiled(x), layer(x))
    assert recorder.report().counts() == {}


def test_autocast_is_refused(compare: Any) -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return F.linear(x, w)

    report = compare(function, torch.randn(4, 16), torch.randn(8, 16))
    assert report.counts() == {}

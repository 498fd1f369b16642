"""Linear layers: taken over where PyTorch's own are slow, and only there."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import fusewheel
import pytest
import torch
import torch.nn.functional as F
from fusewheel.compiler.cost import processor

assert fusewheel
Tensor = torch.Tensor
read_maker = processor.maker.__wrapped__  # what is cached


@pytest.fixture(autouse=True)
def _without_avx512(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    # A processor on which PyTorch's own products of few rows are slow too.
    monkeypatch.setattr(processor, "maker", lambda: "AuthenticAMD")
    monkeypatch.setattr(processor, "has_mkl", lambda: True)


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


@pytest.mark.parametrize(
    ("capability", "rows", "trained"),
    [("AVX2", 64, False), ("AVX2", 512, True), ("AVX512", 5, False), ("AVX512", 16, True)],
)
def test_many_rows_in_float32(
    compare: Any, monkeypatch: pytest.MonkeyPatch, capability: str, rows: int, trained: bool
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)

    def operands(rows: int) -> tuple[Tensor, ...]:
        return torch.randn(rows, 128), torch.randn(512, 128).requires_grad_(trained)

    report = compare(lambda x, w: F.linear(x, w), *operands(rows))
    assert report.counts() == {"linear": 1}, report
    if (capability, trained) != ("AVX512", False):
        report = compare(lambda x, w: F.linear(x, w), *operands(rows - 1))
        assert report.counts() == {} and not report.refusals
    monkeypatch.setattr(processor, "maker", lambda: "GenuineIntel")
    report = compare(lambda x, w: F.linear(x, w), *operands(rows))
    assert report.counts() == {} and not report.refusals


def test_any_number_of_rows_in_float32(compare: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
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


def test_a_processor_whose_library_is_fast_keeps_it(
    compare: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, weight = torch.randn(1, 128), torch.randn(2, 128), torch.randn(512, 128)
    monkeypatch.setattr(processor, "maker", lambda: "GenuineIntel")
    assert compare(lambda x, w: F.linear(x, w), two, weight).counts() == {"linear": 1}
    report = compare(lambda x, w: F.linear(x, w), one, weight)
    assert report.counts() == {} and "one row" in report.refusals[0].reason
    monkeypatch.setattr(processor, "has_mkl", lambda: False)
    report = compare(lambda x, w: F.linear(x, w), two, weight)
    assert report.counts() == {} and "only MKL" in report.refusals[0].reason


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


@pytest.mark.parametrize(
    ("lines", "maker"),
    [
        ("processor\t: 0\nvendor_id\t: AuthenticAMD\nmodel name\t: x\n", "AuthenticAMD"),
        ("processor\t: 0\nCPU implementer\t: 0x41\n", ""),
    ],
)
def test_the_maker_of_a_processor(monkeypatch: pytest.MonkeyPatch, lines: str, maker: str) -> None:
    monkeypatch.setattr(Path, "read_text", lambda _: lines)
    monkeypatch.setattr(platform, "processor", lambda: "")
    assert read_maker() == maker


def test_the_maker_of_a_processor_without_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Path) -> str:
        raise OSError

    monkeypatch.setattr(Path, "read_text", fail)
    described = "AMD64 Family 25 Model 17 Stepping 1, AuthenticAMD"
    monkeypatch.setattr(platform, "processor", lambda: described)
    assert read_maker() == "AuthenticAMD"

"""Residual additions in front of a layer norm, as encoders and GPT-2 write them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import fusewheel
import pytest
import torch
import torch.nn.functional as F
from fusewheel.compiler import rewrite

assert fusewheel
Tensor = torch.Tensor


def _x(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = True) -> Tensor:
    return torch.randn(*shape).to(dtype).requires_grad_(grad)


def _inputs(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    sequences = _x(4, 17, 120, dtype=dtype), _x(4, 17, 120, dtype=dtype)
    return *sequences, _x(120, dtype=dtype), _x(120, dtype=dtype)


def _written_out(h: Tensor, w: Tensor, b: Tensor, wide: torch.dtype) -> Tensor:
    full = h.to(wide)
    centred = full - full.mean(-1, keepdim=True)
    variance = centred.pow(2).mean(-1, keepdim=True)
    return (centred / torch.sqrt(variance + 1e-5) * w.to(wide) + b.to(wide)).to(h.dtype)


# The last argument is the precision that a model asks for.
NORMS: dict[str, Callable[[Tensor, Tensor, Tensor, torch.dtype], Tensor]] = {
    "function": lambda h, w, b, wide: F.layer_norm(h, (120,), w, b, 1e-5),
    "no_bias": lambda h, w, b, wide: F.layer_norm(h, (120,), w) + b.sum(),
    "no_weight": lambda h, w, b, wide: F.layer_norm(h, (120,), None, b) * w.sum(),
    "olmo": lambda h, w, b, wide: F.layer_norm(h.to(wide), (120,)).to(h.dtype) * w.sum() + b.sum(),
    "written_out": _written_out,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("used", [True, False], ids=["pre_norm", "post_norm"])
def test_as_good_as_eager(compare: Any, norm: str, dtype: torch.dtype, used: bool) -> None:
    def block(x: Tensor, r: Tensor, w: Tensor, b: Tensor, wide: torch.dtype) -> Any:
        h = x + r
        y = NORMS[norm](h, w, b, wide)
        return (y * 3, h * 2) if used else y * 3

    function, exact = (partial(block, wide=wide) for wide in (torch.float32, torch.float64))
    report = compare(function, *_inputs(dtype), exact=exact)
    assert report.counts() == {"add_layer_norm": 1}, report
    assert not report.refusals


def test_modules(compare: Any) -> None:
    """The encoder layer of PyTorch, with the norm before and after."""
    for first in (True, False):
        compare.graphs.clear()
        layer = torch.nn.TransformerEncoderLayer(
            120, 2, 64, dropout=0.0, batch_first=True, norm_first=first
        )
        report = compare(layer, _x(4, 17, 120))
        wanted = {"layer_norm": 1, "add_layer_norm": 1} if first else {"add_layer_norm": 2}
        assert report.counts() == wanted, report


# The gradient of what is detached would be rounded in the exact result too.
APART: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], str]] = {
    "positions": (lambda x, r: x + r[:1], "is added to one of (4, 17, 120)"),
    "half": (lambda x, r: x + r.detach().bfloat16(), "torch.bfloat16 is added to torch.float32"),
    "number": (lambda x, r: x + 1.0 + r.sum() * 0, "is added to one of (4, 17, 120)"),
    "in_place": (lambda x, r: (x * 1).add_(r), ""),
    "difference": (lambda x, r: x - r, ""),
}


@pytest.mark.parametrize("case", APART)
def test_kept_apart(compare: Any, case: str) -> None:
    """The norm alone is replaced."""
    add, reason = APART[case]

    def block(x: Tensor, r: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.layer_norm(add(x, r), (120,), w, b)

    report = compare(block, *_inputs(), inner="eager")
    assert report.counts() == {"layer_norm": 1}, report
    reasons = [r.reason for r in report.refusals if r.pattern == "add_layer_norm"]
    assert not reason or any(reason in given for given in reasons), report


@pytest.mark.parametrize("inner", ["eager", "aot_eager"])
def test_sum_written_later(compare: Any, inner: str) -> None:
    """Eager keeps the float32 copy of the sum for backward; the operator would keep the sum."""

    def block(x: Tensor, r: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        h = x + r
        y = _written_out(h, w, b, torch.float32)
        h.add_(1)
        return y, h

    inputs = _inputs(torch.bfloat16)
    report = compare(block, *inputs, inner=inner)
    assert report.counts() == {"rms_norm": 1}, report  # of the centred values
    assert "what backward needs" in report.refusals[0].reason
    with torch.no_grad():
        report = compare(block, *inputs, inner=inner)
    assert report.counts() == {"add_layer_norm": 1}, report


def test_addend_written_later(compare: Any) -> None:
    def block(x: Tensor, r: Tensor, w: Tensor, b: Tensor) -> Tensor:
        stream = x * 1
        y = F.layer_norm(stream + r, (120,), w, b)
        stream += y
        return stream

    with torch.no_grad():
        report = compare(block, *_inputs(), inner="eager")
    assert report.counts() == {"add_layer_norm": 1}, report
    report = compare(block, *_inputs(), inner="eager")
    assert report.counts() == {"layer_norm": 1}, report
    assert "what backward needs" in report.refusals[0].reason


def test_only_the_bias_is_trained(compare: Any) -> None:
    """The operator makes the sum require a gradient too, so it is detached."""

    def block(x: Tensor, r: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        h = x + r
        return F.layer_norm(h, (120,), w, b), h

    x, r, w, b = _inputs()
    report = compare(block, x.detach(), r.detach(), w.detach(), b)
    assert report.counts() == {"add_layer_norm": 1}, report


def test_dynamic_shapes(compare: Any) -> None:
    def block(x: Tensor, r: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        h = x + r
        return F.layer_norm(h, x.shape[-1:], w, b), h

    compiled, recorder = compare.compile(block, dynamic=True)
    for batch, length in ((2, 6), (3, 7), (2, 11)):
        args = _x(batch, length, 120), _x(batch, length, 120), *_inputs()[2:]
        torch.testing.assert_close(compiled(*args), block(*args))
    assert recorder.graphs == 1
    assert recorder.report().counts() == {"add_layer_norm": 1}


def test_exported_program() -> None:
    """The matcher reads ATen too."""

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.last = torch.nn.LayerNorm(120), torch.nn.LayerNorm(120, bias=False)

        def forward(self, x: Tensor, r: Tensor) -> Tensor:
            h = x + r
            return h + self.last(self.norm(h) * 2)

    block, inputs = Block(), (torch.randn(3, 120), torch.randn(3, 120))
    program = torch.export.export(block, inputs)
    report = rewrite(program.graph_module)
    assert report.counts() == {"add_layer_norm": 1, "layer_norm": 1}, report
    torch.testing.assert_close(program.module()(*inputs), block(*inputs))

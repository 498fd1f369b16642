"""Places where a careless rewrite changes results without any error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fusewheel
import pytest
import torch
import torch.nn.functional as F
from fusewheel.compiler.match import checks
from torch.utils.checkpoint import checkpoint
from training import wide

assert fusewheel
Tensor = torch.Tensor


def _norm(x: Tensor, w: Tensor) -> Tensor:
    h = wide(x)
    return w * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def _x(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = True) -> Tensor:
    return torch.randn(*shape).to(dtype).requires_grad_(grad)


def _rotate(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), -1)


def test_extra_user_of_interior_value(compare: Any) -> None:
    def f(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        factor = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        a = w * (x * factor)
        variance = x.pow(2).mean(-1, keepdim=True)
        b = w * (x * torch.rsqrt(variance + 1e-6))
        return a, factor, b + variance

    report = compare(f, _x(3, 8), _x(8))
    assert report.counts() == {}, report
    assert sorted("also used" in r.reason or "times" in r.reason for r in report.refusals)[0]


def test_extra_user_of_an_input_cast_is_fine(compare: Any) -> None:
    def f(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        h = x.float()
        y = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
        return w * y.to(x.dtype), h.sin()

    args = _x(3, 8, dtype=torch.bfloat16), _x(8, dtype=torch.bfloat16)
    assert compare(f, *args).counts() == {"rms_norm": 1}


def test_weight_of_other_dtype(compare: Any) -> None:
    report = compare(_norm, _x(3, 8, dtype=torch.bfloat16), _x(8))
    assert report.counts() == {}, report
    assert "the weight torch.float32" in report.refusals[0].reason


def test_gradient_of_the_tables(compare: Any) -> None:
    """Angles that are trained get their gradient."""

    def f(q: Tensor, k: Tensor, angle: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = angle.cos().unsqueeze(1), angle.sin().unsqueeze(1)
        return q * cos + _rotate(q) * sin, k * cos + _rotate(k) * sin

    assert compare(f, _x(2, 4, 6, 8), _x(2, 2, 6, 8), _x(2, 6, 8)).counts() == {"rope": 1}
    assert compare(f, _x(2, 4, 6, 8), _x(2, 2, 6, 8), _x(1, 6, 8)).counts() == {"rope": 1}


@pytest.mark.parametrize("which", [(True, False), (False, True), (True, True), (False, False)])
def test_requires_grad_is_kept(compare: Any, which: tuple[bool, bool]) -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        y = _norm(x, w)
        return F.silu(y) * x

    assert compare(f, _x(3, 8, grad=which[0]), _x(8, grad=which[1])).count() == 2


def test_change_of_grad_mode_inside_the_pattern(compare: Any) -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        with torch.no_grad():
            factor = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return w * (x * factor)

    report = compare(f, _x(3, 8), _x(8))
    assert report.counts() == {}, report
    assert "mode" in report.refusals[0].reason


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_grad_mode_regions(compare: Any, mode: Callable[[], Any]) -> None:
    def f(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        with mode():
            a = _norm(x, w)
        a = a.clone()
        return a, _norm(x + a, w)

    assert compare(f, _x(3, 8), _x(8)).counts() == {"rms_norm": 1, "add_rms_norm": 1}


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_outer_modes(compare: Any, mode: Callable[[], Any]) -> None:
    with mode():
        report = compare(lambda x, w: F.silu(_norm(x, w)) * x, _x(3, 8), _x(8))
    assert report.count() == 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("outside", [True, False])
def test_autocast(compare: Any, dtype: torch.dtype, outside: bool) -> None:
    """Linear layers give bfloat16 under autocast; norms stay float32, rope gets its casts."""

    def body(x: Tensor, w: Tensor, m: Tensor, cos: Tensor, sin: Tensor) -> Any:
        h = F.linear(_norm(x, w), m)
        h = F.silu(h) * F.linear(x, m)
        q = h.view(2, 6, 2, 8).transpose(1, 2)
        q_out = q * cos.unsqueeze(1) + _rotate(q) * sin.unsqueeze(1)
        k = q + 1
        k_out = k * cos.unsqueeze(1) + _rotate(k) * sin.unsqueeze(1)
        return q_out @ k_out.mT, x + h

    def f(*args: Tensor) -> Any:
        if outside:
            return body(*args)
        with torch.autocast("cpu", dtype):
            return body(*args)

    args = _x(2, 6, 16), _x(16), _x(16, 16), _x(2, 6, 8, grad=False), _x(2, 6, 8, grad=False)
    with torch.autocast("cpu", dtype, enabled=outside):
        report = compare(f, *args)
    assert report.counts() == {"rms_norm": 1, "silu_mul": 1, "rope": 1}, report


def test_autocast_boundary(compare: Any) -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            factor = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return w * (x * factor)

    assert compare(f, _x(3, 8), _x(8)).counts() == {}


def test_checkpoint_body(compare: Any) -> None:
    def layer(x: Tensor, w: Tensor) -> Tensor:
        return F.silu(_norm(x, w)) * x

    def f(x: Tensor, w: Tensor) -> Tensor:
        for _ in range(2):
            x = checkpoint(layer, x, w, use_reentrant=False)
        return _norm(x, w)

    report = compare(f, _x(3, 8), _x(8))
    assert report.counts() == {"rms_norm": 3, "silu_mul": 2}, report
    assert compare.targets().count(torch.ops.fusewheel.rms_norm.default) == 3


def test_cond_body(compare: Any) -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x, w: _norm(x, w), lambda x, w: x * w, (x, w))

    report = compare(f, _x(3, 8), _x(8), inner="eager")
    assert report.counts() == {"rms_norm": 1}, report


def test_functorch_transform(compare: Any) -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        return torch.func.grad(lambda x: _norm(x, w).sum())(x)

    report = compare(f, _x(3, 8, grad=False), _x(8, grad=False), inner="eager")
    assert report.counts() == {}, report
    assert "torch.func" in report.refusals[0].reason


def test_dynamic_shapes(compare: Any) -> None:
    def f(x: Tensor, w: Tensor, cos: Tensor, sin: Tensor) -> Any:
        h = F.silu(_norm(x, w)) * x
        q = h.view(x.shape[0], x.shape[1], 2, 8).transpose(1, 2)
        k = q + 1
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        return (q * cos + _rotate(q) * sin) @ (k * cos + _rotate(k) * sin).mT

    compiled, recorder = compare.compile(f, dynamic=True)
    w = _x(16)
    for batch, length in ((2, 6), (3, 7), (2, 11)):
        args = _x(batch, length, 16), w, torch.randn(1, length, 8), torch.randn(1, length, 8)
        torch.testing.assert_close(compiled(*args), f(*args))
    assert recorder.graphs == 1
    assert recorder.report().counts() == {"rms_norm": 1, "silu_mul": 1, "rope": 1}


def test_symbolic_epsilon(compare: Any) -> None:
    """A float that Dynamo made symbolic is fixed by a guard."""

    def f(x: Tensor, w: Tensor, eps: float) -> Tensor:
        return w * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps))

    for inner in ("eager", "aot_eager"):
        compiled, recorder = compare.compile(f, inner, dynamic=True)
        x, w = _x(3, 8), _x(8)
        for eps in (1e-1, 1.0, 0.5):
            torch.testing.assert_close(compiled(x, w, eps), f(x, w, eps))
        assert recorder.report().count("rms_norm") > 0
        assert not recorder.report().refusals


def test_device_without_a_kernel(compare: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """No kernel for the device: the model runs as before."""
    monkeypatch.setattr(checks, "has_kernel", lambda name, key: False)
    report = compare(_norm, _x(3, 8), _x(8))
    assert report.counts() == {}
    assert "no kernel for CPU" in report.refusals[0].reason

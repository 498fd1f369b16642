"""Writes in place, shared memory and memory layout: rewrites must not be seen through them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fusewheel
import pytest
import torch
import torch.nn.functional as F
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


def test_write_with_unused_result_is_kept(compare: Any) -> None:
    """Dead-code removal must not take ``x.add_(b)`` for dead; a bias lost its gradient by that."""

    def f(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
        y = _norm(x, w) * 1.0
        y.add_(bias)
        y[0] = 2.0
        torch.relu_(y)
        return y

    report = compare(f, _x(3, 8), _x(8), _x(8), inner="eager")
    assert report.counts() == {"rms_norm": 1}
    assert compare(f, _x(3, 8), _x(8), _x(8)).counts() == {"rms_norm": 1}


WRITES: dict[str, Callable[[Tensor], Any]] = {
    "method": lambda t: t.add_(1),
    "operator": lambda t: t.__iadd__(1),
    "item": lambda t: t.__setitem__(0, 3.0),
    "function": lambda t: torch.relu_(t),
    "flag": lambda t: F.relu(t, inplace=True),
    "positional_flag": lambda t: F.leaky_relu(t, 0.1, True),
    "out": lambda t: torch.mul(t.detach(), 2, out=t),
    "view": lambda t: t[1:].mul_(2),
    "overload": lambda t: torch.ops.aten.mul_.Tensor(t, 2),
}


@pytest.mark.parametrize("write", WRITES)
def test_input_written_inside_the_pattern(compare: Any, write: str) -> None:
    def f(x: Tensor, up: Tensor) -> Tensor:
        gate = x * 1.0
        with torch.no_grad():  # one global mode for the whole function
            s = F.silu(gate)
            WRITES[write](gate)
            return s * up + gate

    report = compare(f, _x(3, 8), _x(3, 8))
    assert report.counts() == {}, report
    assert "writes in place" in report.refusals[0].reason


@pytest.mark.parametrize("write", WRITES)
def test_interior_value_written(compare: Any, write: str) -> None:
    def f(x: Tensor, up: Tensor) -> Tensor:
        with torch.no_grad():
            s = F.silu(x)
            WRITES[write](s)
            return s * up

    report = compare(f, _x(3, 8), _x(3, 8))
    assert report.counts() == {}, report
    assert report.refusals


def test_write_between_weight_and_use(compare: Any) -> None:
    """``1 + weight`` is read early; the operator would read the weight late."""

    def f(x: Tensor, w: Tensor) -> Tensor:
        w = w * 1.0
        one = 1.0 + w.float()
        w.mul_(3)
        h = x.float()
        y = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
        return (y * one).to(x.dtype) * w

    for dtype in (torch.float32, torch.bfloat16):
        args = _x(3, 8, dtype=dtype, grad=False), _x(8, dtype=dtype, grad=False)
        report = compare(f, *args)
        assert report.counts() == {}, report
        assert "writes in place" in report.refusals[0].reason


def test_later_write_needed_by_backward(compare: Any) -> None:
    """Eager keeps the float32 copy of x; the operator would keep x, which is overwritten."""

    def f(x: Tensor, w: Tensor) -> Tensor:
        x = x * 1.0
        y = _norm(x, w)
        x.add_(1)
        return y * x

    def exact(x: Tensor, w: Tensor) -> Tensor:
        return _norm(x, w) * (x + 1)

    args = _x(3, 8, dtype=torch.bfloat16), _x(8, dtype=torch.bfloat16)
    report = compare(f, *args, inner="eager", exact=exact)
    assert report.counts() == {}, report
    assert "backward" in report.refusals[0].reason
    with torch.no_grad():
        assert compare(f, *args, inner="eager").counts() == {"rms_norm": 1}


INPLACE_SILU: dict[str, tuple[Callable[[Tensor, Tensor], Any], int]] = {
    "private": (lambda g, u: F.silu(g + 1, inplace=True) * u, 1),
    "argument": (lambda g, u: F.silu(g, inplace=True) * u, 0),
    "part": (lambda g, u: F.silu((g + 1)[:, :4], inplace=True) * u[:, :4], 0),
    "read_later": (lambda g, u: (lambda h: F.silu(h, inplace=True) * u + h)(g + 1), 0),
    "underscore": (lambda g, u: torch.ops.aten.silu_(g) * u, 0),
    "product": (lambda g, u: F.silu(g + 1).mul_(u), 0),
}


@pytest.mark.parametrize("case", INPLACE_SILU)
def test_inplace_silu(compare: Any, case: str) -> None:
    function, count = INPLACE_SILU[case]
    report = compare(function, _x(3, 8, grad=False), _x(3, 8, grad=False), inner="eager")
    assert report.count("silu_mul") == count, report
    assert len(report.refusals) == 1 - count


def test_write_inside_a_body(compare: Any) -> None:
    """A body that writes to what a pattern outside reads."""

    def layer(x: Tensor) -> Tensor:
        return x.mul_(2).sin()

    def f(x: Tensor, up: Tensor) -> Tensor:
        gate = x * 1.0
        s = F.silu(gate)
        y = checkpoint(layer, gate, use_reentrant=False)
        return s * up + y

    with torch.no_grad():
        compiled, recorder = compare.compile(f, "eager")
        x, up = _x(3, 8), _x(3, 8)
        torch.testing.assert_close(compiled(x, up), f(x, up))
    assert recorder.report().counts() == {}


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "view": lambda q: q.transpose(1, 2).view(2, 6, 32) + 1,
    "view_of_product": lambda q: (q * 2).transpose(1, 2).view(2, 6, 32) + 1,
    "output": lambda q: q,
    "output_of_product": lambda q: q * 2,
    "body": lambda q: checkpoint(lambda t: t.sin() @ t.mT, q, use_reentrant=False),
    "reshape": lambda q: q.transpose(1, 2).reshape(2, 6, 32).contiguous() + 1,
    "written_reshape": lambda q: (q.transpose(1, 2).reshape(2, 6, 32).add_(1), q @ q.mT)[1],
    "matmul": lambda q: q @ q.mT,
}


@pytest.mark.parametrize("case", LAYOUTS)
def test_layout(compare: Any, case: str) -> None:
    """Eager keeps the transposed layout of q, which makes the view legal and shows in outputs."""

    def f(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Any:
        q, k = q.transpose(1, 2), k.transpose(1, 2)
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        q, k = q * cos + _rotate(q) * sin, k * cos + _rotate(k) * sin
        return LAYOUTS[case](q), k.mean()

    args = _x(2, 6, 4, 8), _x(2, 6, 2, 8), torch.randn(2, 6, 8), torch.randn(2, 6, 8)
    report = compare(f, *args)
    if case == "matmul":
        assert report.counts() == {"rope": 1}, report
    compiled, _ = compare.compile(f, "eager")
    assert compiled(*args)[0].stride() == f(*args)[0].stride()


@pytest.mark.parametrize("case", LAYOUTS)
def test_layout_that_changes(compare: Any, case: str) -> None:
    """The norm's result is contiguous where eager's has the layout of a transposed input."""

    def f(x: Tensor, w: Tensor) -> Any:
        return LAYOUTS[case](_norm(x.transpose(1, 2), w)), x.mean()

    args = _x(2, 6, 4, 8), _x(8)
    report = compare(f, *args, whole=True)
    # Only a multiplication of matrices and a copy hide the difference.
    assert report.count() == (case in ("matmul", "reshape")), report
    compiled, _ = compare.compile(f, "eager")
    assert compiled(*args)[0].stride() == f(*args)[0].stride()


def test_memory_shared_within_one_pattern(compare: Any) -> None:
    """The second silu writes to a view of what the first rewrite replaced."""

    def f(a: Tensor, b: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
        y = F.silu(a) * b
        return F.silu(y.view(-1), inplace=True) * up, y

    args = _x(3, 8, grad=False), _x(3, 8, grad=False), _x(24, grad=False)
    report = compare(f, *args, inner="eager")
    assert report.counts() == {"silu_mul": 1}, report
    assert "writes in place" in report.refusals[0].reason


def test_memory_shared_with_a_replaced_value(compare: Any) -> None:
    """A write to a view of what the first rewrite replaced is seen by the second one."""

    def f(x: Tensor, w: Tensor, up: Tensor) -> Tensor:
        y = _norm(x, w)
        part = y[1:]
        s = F.silu(y)
        part.add_(1)
        return s * up + y

    with torch.no_grad():
        report = compare(f, _x(3, 8), _x(8), _x(3, 8))
    assert report.counts() == {"rms_norm": 1}, report
    assert "writes in place" in report.refusals[0].reason

"""A graph that records no gradient runs below autograd; one that does is left as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fusewheel
import pytest
import torch
import torch.nn.functional as F
from torch.autograd import forward_ad

assert fusewheel
Tensor = torch.Tensor
Watched = tuple[Callable[..., Any], list[bool]]


def watched(function: Callable[..., Any]) -> Watched:
    """`function` compiled, and for each call of a graph whether that ran below autograd."""
    below: list[bool] = []

    def inner(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        def call(*arguments: Any) -> Any:
            key = torch._C.DispatchKey.AutogradFunctionality
            below.append(torch._C._dispatch_tls_is_dispatch_key_excluded(key))
            return gm(*arguments)

        return call

    return torch.compile(function, backend="fusewheel", options={"inner": inner}), below


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """The smallest function with a match."""
    return F.silu(gate) * up


def test_inference_runs_below() -> None:
    call, below = watched(swiglu)
    gate, up = torch.randn(3, 8, requires_grad=True), torch.randn(3, 8)
    with torch.no_grad():
        result = call(gate, up)
    assert not result.requires_grad
    torch.testing.assert_close(result, swiglu(gate, up).detach())
    call(gate.detach(), up)
    assert below == [True, True]


def test_training_does_not() -> None:
    call, below = watched(swiglu)
    gate, up = torch.randn(3, 8), torch.randn(3, 8)
    call(gate, up)
    gate.requires_grad_()
    (actual,) = torch.autograd.grad(call(gate, up).sum(), gate)
    (expected,) = torch.autograd.grad(swiglu(gate, up).sum(), gate)
    torch.testing.assert_close(actual, expected)
    assert below == [True, False]


def test_frozen_layers_in_training_do_not() -> None:
    layer = torch.nn.Linear(8, 8).requires_grad_(False)
    call, below = watched(lambda x: swiglu(layer(x), x))
    x = torch.randn(3, 8, requires_grad=True)
    call(x).sum().backward()
    assert x.grad is not None and below == [False]


def test_gradients_switched_on_inside() -> None:
    def function(gate: Tensor, up: Tensor) -> Tensor:
        with torch.enable_grad():
            return swiglu(gate, up)

    call, below = watched(function)
    gate, up = torch.randn(3, 8, requires_grad=True), torch.randn(3, 8)
    with torch.no_grad():
        result = call(gate, up)
    assert result.requires_grad and below == [False]


def test_writes_to_inputs_are_noticed() -> None:
    def function(x: Tensor, up: Tensor) -> Tensor:
        x.mul_(2)
        return swiglu(x, up)

    call, below = watched(function)
    x, factor = torch.randn(3, 8), torch.randn(3, 8, requires_grad=True)
    product = x * factor
    with torch.no_grad():
        call(x, torch.randn(3, 8))
    assert below == [True] and x._version == 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


def test_views_stay_views() -> None:
    def function(x: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
        return x.view(-1), swiglu(x, up)

    call, below = watched(function)
    x, factor = torch.randn(3, 8), torch.randn(24, requires_grad=True)
    view, _ = call(x, torch.randn(3, 8))
    assert below == [True] and view._base is x
    view.mul_(factor)
    (gradient,) = torch.autograd.grad(x.sum(), factor)
    assert gradient.shape == factor.shape


@pytest.mark.parametrize("inner", ["eager", "aot_eager"])
def test_transforms_around_a_compiled_function(inner: str) -> None:
    call = torch.compile(swiglu, backend="fusewheel", options={"inner": inner})
    gate, up = torch.randn(3, 8), torch.randn(3, 8)
    call(gate, up)
    actual = torch.func.grad(lambda g: call(g, up).sum())(gate)
    expected = torch.func.grad(lambda g: swiglu(g, up).sum())(gate)
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(
        torch.func.jvp(lambda g: call(g, up), (gate,), (up,))[1],
        torch.func.jvp(lambda g: swiglu(g, up), (gate,), (up,))[1],
    )
    torch.testing.assert_close(torch.func.vmap(call)(gate, up), swiglu(gate, up))


@pytest.mark.parametrize("inner", ["eager", "aot_eager"])
def test_tangents_are_not_lost(inner: str) -> None:
    call = torch.compile(swiglu, backend="fusewheel", options={"inner": inner})
    gate, up, tangent = torch.randn(3, 8), torch.randn(3, 8), torch.randn(3, 8)
    call(gate, up)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(gate, tangent)
        expected = forward_ad.unpack_dual(swiglu(dual, up)).tangent
        actual = forward_ad.unpack_dual(call(dual, up)).tangent
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("inner", ["aot_eager", "none"])
def test_one_result_without_a_gradient(compare: Any, inner: str) -> None:
    """As queries with adapters beside keys without, and a trained norm behind a frozen sum."""

    def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return x * cos + torch.cat((-x[..., 4:], x[..., :4]), -1) * sin

    def function(q: Tensor, k: Tensor, r: Tensor, cos: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        h = k + r
        y = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6) * w
        return turned(q, cos, cos), turned(k, cos, cos), h * 2, y

    q, k, r = (torch.randn(2, 3, 5, 8) for _ in range(3))
    tables = torch.randn(5, 8), torch.rand(8).requires_grad_()
    report = compare.oracle(function, q.requires_grad_(), k, r, *tables, inner=inner)
    assert report.counts() == {"rope": 1, "add_rms_norm": 1}, report

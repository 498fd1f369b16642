"""A graph that records no gradient runs below autograd; one that does is left as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fusewheel
import pytest
import torch
import torch.nn.functional as F
from fusewheel.compiler import backend
from fusewheel.compiler.ir.recording import records_gradients
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

assert fusewheel
# Dynamo looks at it where an argument is no leaf.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
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


@pytest.mark.matrix
def test_inference_runs_below() -> None:
    call, below = watched(swiglu)
    gate, up = torch.randn(3, 8, requires_grad=True), torch.randn(3, 8)
    with torch.no_grad():
        result = call(gate, up)
    assert not result.requires_grad
    torch.testing.assert_close(result, swiglu(gate, up).detach())
    call(gate.detach(), up)
    assert below == [True, True]


@pytest.mark.matrix
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


@pytest.mark.matrix
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


@pytest.mark.matrix
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


@pytest.mark.matrix
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
    report = compare(function, q.requires_grad_(), k, r, *tables, inner=inner)
    assert report.counts() == {"rope": 1, "add_rms_norm": 1}, report


COS, SIN = torch.rand(2, 8), torch.rand(2, 8)
_library = torch.library.Library("fusewheel_test_autograd", "DEF")
_library.define("clear(Tensor(a!) x) -> ()")
_library.define("clear_and_count(Tensor(a!) x) -> Tensor")
_library.impl("clear", lambda x: None if x.zero_() is x else x, "CompositeImplicitAutograd")
_library.impl("clear_and_count", lambda x: x.zero_().new_zeros(()), "CompositeImplicitAutograd")


def assign(x: Tensor, w: Tensor) -> None:
    x[0] = 0


def assign_by_method(x: Tensor, w: Tensor) -> None:
    torch.Tensor.__setitem__(x, 0, 0)


def assign_by_mask(x: Tensor, w: Tensor) -> None:
    x[x > 0] = 0


def assign_a_trained_value(x: Tensor, w: Tensor) -> None:
    x[0] = w


def operator_without_a_result(x: Tensor, w: Tensor) -> None:
    torch.ops.fusewheel_test_autograd.clear(x)


def operator_with_another_result(x: Tensor, w: Tensor) -> Tensor:
    result: Tensor = torch.ops.fusewheel_test_autograd.clear_and_count(x)
    return result


def rotate(x: Tensor, w: Tensor) -> None:
    fusewheel.rope_(x.view(1, 1, 2, 8), COS, SIN)


def add_to(x: Tensor, w: Tensor) -> None:
    fusewheel.add_out(x, x, out=x)


def put(x: Tensor, w: Tensor) -> None:
    x.index_put_((torch.tensor([0]),), w)


def copy(x: Tensor, w: Tensor) -> None:
    x.copy_(w)


def write_to_several(x: Tensor, w: Tensor) -> None:
    torch._foreach_mul_([x], 2)


def in_a_checkpoint(x: Tensor, w: Tensor) -> Tensor:
    def part(y: Tensor) -> Tensor:
        y[0] = 0
        return torch.ones(3)

    result: Tensor = checkpoint(part, x, use_reentrant=False)
    return result


def where_gradients_are_on_again(x: Tensor, w: Tensor) -> None:
    with torch.no_grad(), torch.enable_grad():
        x[0] = 0


def beside_what_is_not_recorded(x: Tensor, w: Tensor) -> None:
    with torch.no_grad():
        x[0] = 0
    x[1] = 0


# The graph of none of them needs a value that requires a gradient.
WRITES = (
    *(assign, assign_by_method, assign_by_mask, assign_a_trained_value),
    *(operator_without_a_result, operator_with_another_result),
    *(rotate, add_to, put, copy, write_to_several),
    *(in_a_checkpoint, where_gradients_are_on_again, beside_what_is_not_recorded),
)
Write = Callable[[Tensor, Tensor], Any]


def _after(write: Write, trained: str) -> list[Tensor | None]:
    """What a write makes of `x`, and the gradients; those named require one."""
    x, w = (torch.randn(size).requires_grad_(name in trained) for name, size in SIZES.items())
    written = x * 2
    write(written, w)
    if written.requires_grad:
        (written * torch.arange(16.0).view(2, 8)).sum().backward()
    return [written.detach(), x.grad, w.grad]


SIZES = {"x": (2, 8), "w": (8,)}


@pytest.mark.matrix
@pytest.mark.parametrize("trained", ["x", "w", "xw"])
@pytest.mark.parametrize("write", WRITES)
def test_writes_are_recorded(write: Write, trained: str) -> None:
    torch.manual_seed(3)
    expected = _after(write, trained)
    call, below = watched(write)
    torch.manual_seed(3)
    torch.testing.assert_close(_after(call, trained), expected, rtol=0, atol=0)
    if "x" in trained:
        assert below == [False]


@pytest.mark.parametrize("inner", ["aot_eager", "none"])
@pytest.mark.parametrize("write", WRITES)
def test_writes_are_recorded_by_what_is_made_of_the_graph(write: Write, inner: str) -> None:
    torch.manual_seed(3)
    expected = _after(write, "xw")
    call = torch.compile(write, backend="fusewheel", options={"inner": inner})
    torch.manual_seed(3)
    torch.testing.assert_close(_after(call, "xw"), expected, rtol=0, atol=0)


@pytest.mark.parametrize("write", WRITES)
def test_writes_without_a_gradient_run_below(write: Write) -> None:
    call, below = watched(write)
    _after(call, "")
    assert below == [True]


def test_graphs_without_metadata_do_not_run_below() -> None:
    gm = torch.fx.symbolic_trace(swiglu)
    x = torch.randn(3, 8, requires_grad=True)
    call = backend(gm, (x, x), options={"inner": "eager"})
    assert call(x, x).requires_grad


VIEWS = {
    "itself": lambda x, w: x * w.float(),
    "view": lambda x, w: x * w[None].transpose(0, 1),
    "returned view": lambda x, w: (x * 2, w[None]),
    "written view": lambda x, w: (x * 2, w.view(3, 1).zero_())[0],
}


@pytest.mark.parametrize("case", VIEWS)
def test_a_view_of_a_weight_records_nothing(case):
    """Without grad mode `weight.float()` of a float32 weight still requires a gradient."""
    weight, x, recorded = torch.nn.Parameter(torch.ones(3)), torch.randn(3), []

    def capture(gm, inputs):
        recorded.append(records_gradients(gm, inputs))
        return gm.forward

    function = torch.compile(VIEWS[case], backend=capture)
    with torch.no_grad():
        function(x, weight)
    assert recorded == [case in ("returned view", "written view")]
    if case != "written view":  # an error of PyTorch's: a leaf that requires a gradient
        function(x, weight)
        assert recorded[1:] == [True]

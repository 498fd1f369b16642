"""The short way of a call: where nothing watches it is taken, and what watches is never passed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fusewheel
import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

Call = Callable[[Tensor, Tensor], Tensor]

CALLS: dict[str, Call] = {
    "mul": fusewheel.mul,
    "silu_mul": fusewheel.silu_mul,
    "gelu": lambda x, _: fusewheel.gelu(x),
    "rms_norm": lambda x, y: fusewheel.rms_norm(x, 8, y),
    "layer_norm": lambda x, y: fusewheel.layer_norm(x, 8, y, y),
}


@pytest.fixture(params=CALLS)
def call(request: pytest.FixtureRequest) -> Call:
    return CALLS[request.param]


@pytest.fixture
def long(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The operators that were called by the long way."""
    names: list[str] = []
    packet = type(torch.ops.fusewheel.mul)
    whole = packet.__call__

    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        names.append(self.__name__)
        return whole(self, *args, **kwargs)

    monkeypatch.setattr(packet, "__call__", watched)
    return names


def pair(**options: Any) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(8, generator=generator).requires_grad_(**options) for _ in range(2))
    return x, y


class Named(torch.Tensor):
    """A subclass."""


class FunctionMode(TorchFunctionMode):
    """Writes down what is called."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        self.seen.append(str(function))
        return function(*args, **(kwargs or {}))


class DispatchMode(TorchDispatchMode):
    """Writes down what is called."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        self.seen.append(str(function))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("gradient", [False, True])
def test_a_plain_call_takes_it(call: Call, long: list[str], gradient: bool):
    x, y = pair(requires_grad=gradient)
    out = call(x, y)
    assert out.requires_grad == gradient
    with torch.no_grad():
        assert torch.equal(call(x, y), out)
    assert not long


def test_autograd_is_left_out_no_longer_than_the_call(call: Call):
    x, y = pair(requires_grad=False)
    call(x, y)
    with pytest.raises(RuntimeError) as caught:
        call(x.to_sparse(), y)
    assert caught.value.__traceback__ is not None  # it keeps what the frames held
    x.requires_grad_()
    assert (x + y).requires_grad


def test_the_gradient_is_the_same(call: Call):
    found = torch.autograd.grad(call(*pair()).sum(), pair_of := pair(), allow_unused=True)
    assert found == (None, None)  # other tensors
    own = call(*pair_of).sum()
    with FunctionMode():
        other = call(*pair_of).sum()
    gradients = [torch.autograd.grad(y, pair_of, allow_unused=True) for y in (own, other)]
    for a, b in zip(*gradients, strict=True):
        assert (a is None and b is None) or torch.equal(a, b)


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("mode", [FunctionMode, DispatchMode])
def test_a_mode_sees_the_operator(call: Call, mode: Callable[[], Any], gradient: bool):
    with mode() as active:
        out = call(*pair(requires_grad=gradient))
    assert any(function.startswith("fusewheel") for function in active.seen)
    assert out.requires_grad == gradient


def test_a_function_mode_may_differentiate():
    """It runs before autograd, so what it computes itself is recorded."""
    x, y = pair(requires_grad=False)
    leaf = x.clone().requires_grad_()

    class Adds(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
            return function(*args, **(kwargs or {})) + leaf

    with Adds():
        out = fusewheel.mul(x, y)
    assert out.requires_grad


def test_a_subclass_is_kept(call: Call, long: list[str]):
    x, y = pair(requires_grad=False)
    assert type(call(x.as_subclass(Named), y)) is Named
    assert long


def test_transforms_see_the_operator(call: Call, long: list[str]):
    x, y = pair(requires_grad=False)
    found = torch.func.grad(lambda x: call(x, y).sum())(x)
    assert long
    x.requires_grad_()
    (expected,) = torch.autograd.grad(call(x, y).sum(), x)
    torch.testing.assert_close(found, expected)
    long.clear()
    rows = torch.func.vmap(call, (0, None))(torch.stack([x, x]).detach(), y)
    assert rows.shape == (2, 8)
    assert long


def test_a_tensor_of_a_transform_that_has_ended(call: Call):
    """It stands for what is in it, as in PyTorch's operators."""
    x, y = pair(requires_grad=False)
    kept: list[Tensor] = []

    def keeps(x: Tensor) -> Tensor:
        kept.append(x)
        return (x * y).sum()

    torch.func.grad(keeps)(x)
    assert torch.equal(call(kept[0], y), call(x, y))
    y.requires_grad_()
    own, other = call(kept[0], y), call(x, y)
    assert own.requires_grad == other.requires_grad
    for a, b in zip(
        torch.autograd.grad(own.sum(), y) if own.requires_grad else (),
        torch.autograd.grad(other.sum(), y) if other.requires_grad else (),
        strict=True,
    ):
        assert torch.equal(a, b)


def test_forward_mode_keeps_the_tangent(call: Call):
    x, y = pair(requires_grad=False)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        assert torch.autograd.forward_ad.unpack_dual(call(dual, y)).tangent is not None


@pytest.mark.parametrize("gradient", [False, True])
def test_autocast_casts(gradient: bool):
    x, y = pair(requires_grad=gradient)
    with torch.autocast("cpu", torch.bfloat16):
        out = fusewheel.mul(x, y.bfloat16())
    assert out.dtype == torch.float32
    assert out.requires_grad == gradient
    if gradient:
        (found,) = torch.autograd.grad(out.sum(), y)
        torch.testing.assert_close(found, x.detach().bfloat16().float())


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")  # of comparisons of sizes
@pytest.mark.parametrize("gradient", [False, True])
def test_a_tracer_records_the_operator(call: Call, gradient: bool):
    x, y = pair(requires_grad=gradient)
    traced = torch.jit.trace(call, (x, y), check_trace=False)
    assert "fusewheel::" in str(traced.graph)
    assert "PythonOp" not in str(traced.graph)
    assert torch.equal(traced(y, x), call(y, x))


def test_it_is_compiled_and_scripted():
    x, y = pair()
    compiled = torch.compile(fusewheel.mul, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x, y), x * y)
    scripted = torch.jit.script(fusewheel.mul)
    assert "fusewheel::mul" in str(scripted.inlined_graph)
    assert torch.equal(scripted(x, y), x * y)


def test_errors_are_those_of_the_operator():
    x, _ = pair()
    with pytest.raises(RuntimeError, match="mul: "):
        fusewheel.mul(x, torch.zeros(7))
    with pytest.raises(RuntimeError, match="must be a dense tensor"):
        fusewheel.mul(x.detach(), x.detach().to_sparse())
    with pytest.raises(RuntimeError, match="rms_norm: weight must have shape"):
        fusewheel.rms_norm(x, 8, torch.zeros(7))

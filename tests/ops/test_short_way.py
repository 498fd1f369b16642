"""The short way of a call: where nothing watches it is taken, and what watches is never passed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import fusewheel
import pytest
import torch
from fusewheel.dispatch import short
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
def taken(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The operators that were called by the short way."""
    names: list[str] = []

    def watched(name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            names.append(name)
            return kernel(*arguments)

        return run

    for name, kernel in list(short._kernels.items()):
        monkeypatch.setitem(short._kernels, name, watched(name, kernel))
    yield names


def pair(**options: Any) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(8, generator=generator).requires_grad_(**options) for _ in range(2))
    return x, y


class Named(torch.Tensor):
    """A subclass."""


class FunctionMode(TorchFunctionMode):
    """Counts calls."""

    seen = 0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        self.seen += 1
        return function(*args, **(kwargs or {}))


class DispatchMode(TorchDispatchMode):
    """Counts calls."""

    seen = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        self.seen += 1
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("gradient", [False, True])
def test_a_plain_call_takes_it(call: Call, taken: list[str], gradient: bool):
    x, y = pair(requires_grad=gradient)
    out = call(x, y)
    assert len(taken) == 1
    assert out.requires_grad == gradient
    with torch.no_grad():
        assert torch.equal(call(x, y), out)
    assert len(taken) == 2


def test_the_gradient_is_the_same(call: Call):
    found = torch.autograd.grad(call(*pair()).sum(), pair_of := pair(), allow_unused=True)
    assert found == (None, None)  # other tensors
    own = call(*pair_of).sum()
    with FunctionMode():
        other = call(*pair_of).sum()
    gradients = [torch.autograd.grad(y, pair_of, allow_unused=True) for y in (own, other)]
    for a, b in zip(*gradients, strict=True):
        assert (a is None and b is None) or torch.equal(a, b)


@pytest.mark.parametrize("mode", [FunctionMode, DispatchMode])
def test_a_mode_sees_the_operator(call: Call, taken: list[str], mode: Callable[[], Any]):
    with mode() as active:
        call(*pair(requires_grad=False))
    assert active.seen > 0
    assert not taken


def test_a_subclass_is_kept(call: Call, taken: list[str]):
    x, y = pair(requires_grad=False)
    assert type(call(x.as_subclass(Named), y)) is Named
    assert not taken


def test_transforms_see_the_operator(call: Call, taken: list[str]):
    x, y = pair(requires_grad=False)
    found = torch.func.grad(lambda x: call(x, y).sum())(x)
    assert not taken
    x.requires_grad_()
    (expected,) = torch.autograd.grad(call(x, y).sum(), x)
    torch.testing.assert_close(found, expected)
    taken.clear()
    rows = torch.func.vmap(call, (0, None))(torch.stack([x, x]).detach(), y)
    assert rows.shape == (2, 8)
    assert not taken


def test_forward_mode_keeps_the_tangent(call: Call):
    x, y = pair(requires_grad=False)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        assert torch.autograd.forward_ad.unpack_dual(call(dual, y)).tangent is not None


def test_autocast_casts(taken: list[str]):
    x, y = pair(requires_grad=False)
    with torch.autocast("cpu", torch.bfloat16):
        assert fusewheel.mul(x, y.bfloat16()).dtype == torch.float32
    assert not taken


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")  # of comparisons of sizes
def test_a_tracer_records_the_operator(call: Call, taken: list[str]):
    x, y = pair(requires_grad=False)
    traced = torch.jit.trace(call, (x, y), check_trace=False)
    assert "fusewheel::" in str(traced.graph)
    assert not taken


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

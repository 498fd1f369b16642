"""What `optimize` returns runs below autograd where that makes no difference, and only there."""

from __future__ import annotations

import copy
import io
import sys

import pytest
import torch
import torch.nn.functional as F
from fusewheel import jit
from fusewheel.dispatch import autograd
from fusewheel.jit.inference import InferenceModule
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.modules.module import register_module_forward_hook

X = torch.randn(3, 8)


class Gated(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.silu(x) * (x + 1.0)


class Views(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return F.silu(x) * (x + 1.0), x.view(-1)


@pytest.fixture
def optimized():
    return jit.optimize(torch.jit.script(Gated().eval()), X)


def in_python(call):
    """Whether an operator passes through its kernel for `Autograd`, which is Python."""
    modules = set()
    sys.setprofile(lambda frame, *_: modules.add(frame.f_globals.get("__name__")))
    try:
        call()
    finally:
        sys.setprofile(None)
    return autograd.__name__ in modules


@pytest.fixture(autouse=True)
def _recorded():
    with torch.enable_grad():
        yield


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad], ids=["no_grad", "grad"])
def test_it_runs_below_autograd(optimized, mode):
    with mode():
        got = optimized(X)  # the profiling executor's first run
        assert not in_python(lambda: optimized(X))
        assert not in_python(lambda: optimized(x=X))
        assert in_python(lambda: optimized.forward(X))
    assert not got.requires_grad
    torch.testing.assert_close(got, Gated()(X))


def test_gradients_of_inputs(optimized):
    x, twin = (X.clone().requires_grad_() for _ in range(2))
    for run, leaf in ((optimized, x), (Gated(), twin)):
        run(leaf).square().sum().backward()
    torch.testing.assert_close(x.grad, twin.grad)


def test_the_result_takes_part_in_what_is_recorded(optimized):
    """It is an ordinary tensor, not one of inference mode."""
    weight = torch.ones(8, requires_grad=True)
    (optimized(X) * weight).sum().backward()
    torch.testing.assert_close(weight.grad, Gated()(X).sum(0))


def test_tangents(optimized):
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(X, torch.ones_like(X))
        got, want = (forward_ad.unpack_dual(run(dual)).tangent for run in (optimized, Gated()))
    torch.testing.assert_close(got, want)


def test_transforms(optimized):
    def total(run):
        return torch.func.grad(lambda x: run(x).sum())(X)

    torch.testing.assert_close(total(optimized), total(Gated()))


def test_views_of_inputs_are_known_to_autograd():
    """A write through one is a write to the other, which somebody may have saved."""
    module = jit.optimize(torch.jit.script(Views().eval()), X)
    assert not isinstance(module, InferenceModule)
    x, weight = X.clone(), torch.ones(8, requires_grad=True)
    saved = (x * weight).sum()
    module(x)[1].add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        saved.backward()


def test_hooks_run_as_before(optimized):
    recorded = []
    weight = torch.ones(8, requires_grad=True)
    handle = register_module_forward_hook(lambda m, i, out: recorded.append((out * weight).sum()))
    optimized(X)
    handle.remove()
    assert [value.requires_grad for value in recorded] == [True]


def test_it_is_what_it_was_elsewhere(optimized):
    buffer = io.BytesIO()
    torch.jit.save(optimized, buffer)
    buffer.seek(0)
    outer = nn.Sequential(optimized, nn.ReLU()).eval()
    for module in (
        torch.jit.load(buffer),
        copy.deepcopy(optimized),
        torch.jit.script(outer)[0],
        getattr(torch.jit.trace(outer, X), "0"),
    ):
        assert "fusewheel::silu_mul" in str(module.inlined_graph)
        assert torch.equal(module(X), optimized(X))


class Keeps(nn.Module):
    """Writes in place to a buffer, so that the buffer stays one when the module is frozen."""

    def __init__(self):
        super().__init__()
        self.register_buffer("state", torch.ones(3, 8))

    def forward(self, x: Tensor) -> Tensor:
        self.state[0] = 0.0
        return F.silu(x) * (x + 1.0) + self.state


class Differentiates(nn.Module):
    """Asks for a gradient itself."""

    def forward(self, x: Tensor) -> Tensor:
        y = F.silu(x) * (x + 1.0)
        z = torch.zeros([8]).requires_grad_()
        found = torch.autograd.grad([(y * z).sum()], [z])[0]
        assert found is not None
        return found * 2.0


class Learns(nn.Module):
    """Makes a tensor that requires a gradient."""

    def forward(self, x: Tensor) -> Tensor:
        y = F.silu(x) * (x + 1.0)
        return y * torch.tensor(3.0, requires_grad=True)


OUTSIDE = torch.ones(8, requires_grad=True)


@torch.jit.ignore
def scaled(x):
    return x * OUTSIDE


class CallsPython(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return scaled(F.silu(x) * (x + 1.0)) * 2.0


@pytest.mark.parametrize("kind", [Differentiates, Learns, CallsPython])
def test_a_graph_that_records_by_itself_is_left_to_autograd(kind, fused_in):
    module = jit.optimize(torch.jit.script(kind().eval()), X)
    assert fused_in(module) == {"silu_mul": 1}
    got, want = module(X), kind()(X)
    assert got.requires_grad == want.requires_grad
    torch.testing.assert_close(got, want)


def test_a_write_to_what_requires_a_gradient_is_recorded(fused_in):
    """The gradient of what the write replaced is 0."""
    grads = []
    for optimized in (True, False):
        module = torch.jit.script(Keeps().eval())
        if optimized:
            module = jit.optimize(module, X)
            assert fused_in(module) == {"silu_mul": 1}
        leaf = torch.ones(3, 8, requires_grad=True)
        state = module if not optimized else module.fused
        state.state = leaf * 2.0
        module(X).sum().backward()
        grads.append(leaf.grad)
    assert torch.equal(*grads)
    assert not grads[0][0].any() and grads[0][1:].all()

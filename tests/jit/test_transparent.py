"""`fusewheel.jit.enable`: what modules do while it is on, and that it leaves no trace."""

from __future__ import annotations

import copy
import io
import sys
import threading
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from fusewheel import jit
from fusewheel.jit import transparent
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.modules.module import register_module_forward_hook

from .gated import Gated, fused, gated
from .nets import as_torchscript, decoder, inputs

pytestmark = pytest.mark.usefixtures("off_after")
X = torch.randn(3, 4)


@pytest.mark.matrix
@pytest.mark.parametrize("how", ["script", "trace", "load"])
def test_modules_of_every_origin(how):
    model = decoder()
    module = as_torchscript(model, "trace" if how == "trace" else "script", inputs())
    if how == "load":
        buffer = io.BytesIO()
        torch.jit.save(module, buffer)
        buffer.seek(0)
        module = torch.jit.load(buffer)
    with jit.enable():
        for sizes in ((2, 6), (3, 4), (1, 6)):
            given = inputs(torch.float32, *sizes)
            torch.testing.assert_close(module(*given), model(*given))
        assert fused(module)
        assert torch.equal(module(x=given[0], cos=given[1], sin=given[2]), module(*given))


def test_disable_undoes_it():
    before = torch.jit.ScriptModule.__call__, torch.jit.RecursiveScriptModule.__setattr__
    module = gated()
    jit.enable()
    jit.enable()
    module(X)
    assert fused(module)
    jit.disable()
    jit.disable()
    after = torch.jit.ScriptModule.__call__, torch.jit.RecursiveScriptModule.__setattr__
    assert before == after
    assert not transparent._entries
    module(X)
    assert not fused(module)


def test_an_inner_context_leaves_the_outer_one_on():
    module = gated()
    with jit.enable():
        with jit.enable():
            pass
        module(X)
        assert fused(module)


def test_training_mode_runs_as_it_is():
    module = gated().train()
    with jit.enable():
        module(X)
        assert not fused(module)
        for _ in range(transparent._ATTEMPTS + 1):
            module.eval()
            module(X)
            assert fused(module)
            module.train()
            with torch.enable_grad():
                assert module(X).requires_grad


def test_gradients_of_weights_are_there():
    module = gated()
    with jit.enable():
        module(X)
        assert fused(module)
        with torch.enable_grad():
            module(X).sum().backward()
    assert module.weight.grad is not None


def test_called_under_grad_first():
    """Training is left alone from the first call on; inference of the same module is not."""
    module = gated()
    with jit.enable():
        with torch.enable_grad():
            first, second = module(X), module(X)
            second.sum().backward()
        assert first.requires_grad and module.weight.grad is not None
        want = F.silu(X) * (X @ (module.weight.t() + 1.0))
        torch.testing.assert_close(module(X), want)
        assert fused(module)
        x = X.clone().requires_grad_()
        module.weight.requires_grad_(False)
        with torch.enable_grad():
            module(x).sum().backward()
        assert x.grad is not None and x.grad.any()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad], ids=["no_grad", "grad"])
def test_what_nobody_differentiates_runs_below_autograd(mode):
    module = gated()
    module.weight.requires_grad_(False)
    files = set()
    with jit.enable(), mode():
        module(X)
        sys.setprofile(lambda frame, *_: files.add(Path(frame.f_code.co_filename).name))
        try:
            module(X)
        finally:
            sys.setprofile(None)
    assert "transparent.py" in files and "register.py" not in files


def test_tangents_pass_through():
    module = gated()
    with jit.enable(), forward_ad.dual_level():
        module(X)
        assert fused(module)
        dual = forward_ad.make_dual(X, torch.ones_like(X))
        got = forward_ad.unpack_dual(module(dual)).tangent
        want = forward_ad.unpack_dual(F.silu(dual) * (dual @ (module.weight.t() + 1.0))).tangent
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("inside", [False, True], ids=["alone", "in a Sequential"])
def test_the_warning_names_the_line_of_the_user(inside, monkeypatch):
    monkeypatch.setattr(transparent, "lowered", lambda *_: 1 / 0)
    module = nn.Sequential(gated()) if inside else gated()
    with jit.enable(), pytest.warns(UserWarning, match="runs as it is") as caught:
        module(X)
    assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.parametrize("part", ["lowered", "lower.replay"])
def test_a_failing_rewrite_warns_once_and_runs_as_it_is(part, monkeypatch):
    monkeypatch.delenv("FUSEWHEEL_COMPILER_STRICT")
    where = "transparent.lowered" if part == "lowered" else part
    monkeypatch.setattr(f"fusewheel.jit.{where}", lambda *_: 1 / 0)
    module = gated()
    want = module(X)
    with jit.enable():
        with pytest.warns(UserWarning, match=r"Gated runs as it is: .*division by zero") as caught:
            for _ in range(transparent._ATTEMPTS + 1):
                assert torch.equal(module(X), want)
        assert sum("runs as it is" in str(warning.message) for warning in caught) == 1
        assert not fused(module)


def test_hooks_run():
    module = gated()
    seen = []
    with jit.enable():
        module(X)
        # TorchScript modules take no hooks of their own once they are made.
        handle = register_module_forward_hook(lambda *_: seen.append(1))
        module(X)
        handle.remove()
    assert seen == [1]


def test_state_stays_with_the_module():
    class Counts(Gated):
        def __init__(self):
            super().__init__()
            self.calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return F.silu(x) * x * self.calls

    module = torch.jit.script(Counts().eval())
    with jit.enable():
        assert torch.equal(module(X), F.silu(X) * X)
        assert torch.equal(module(X), F.silu(X) * X * 2)
    assert module.calls == 2


def test_saving_and_copying_see_the_module_itself():
    module = gated()
    with jit.enable():
        want = module(X)
        buffer = io.BytesIO()
        torch.jit.save(module, buffer)
        assert "fusewheel" not in str(module.inlined_graph)
        assert torch.equal(copy.deepcopy(module)(X), want)
    buffer.seek(0)
    again = torch.jit.load(buffer)
    assert "fusewheel" not in str(again.inlined_graph)
    torch.testing.assert_close(again(X), want)


def test_a_module_inside_a_traced_one():
    module = gated()
    with jit.enable():
        module(X)
        traced = torch.jit.trace(nn.Sequential(module, nn.ReLU()).eval(), X)
    assert "fusewheel" not in str(traced.inlined_graph)


def test_errors_of_the_module_arrive():
    module = gated()
    with jit.enable():
        with pytest.raises(RuntimeError, match="x"):
            module()
        with pytest.raises(RuntimeError, match=r"cannot be multiplied|mat1"):
            module(torch.randn(3, 5))
        module(X)
        assert fused(module)


def test_threads():
    modules = [gated() for _ in range(2)]
    wants = [module(X) for module in modules]
    errors = []

    def work(number: int) -> None:
        try:
            with torch.no_grad():
                for i in range(20):
                    if number == 0 and i % 5 == 4:
                        jit.disable()
                        jit.enable()
                    which = (i + number) % 2
                    torch.testing.assert_close(modules[which](X), wants[which])
        except BaseException as error:
            errors.append(error)

    jit.enable()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_a_dead_module_leaves_no_entry():
    module = gated()
    with jit.enable():
        module(X)
        key = id(module)
        assert key in transparent._entries
        del module
        import gc

        gc.collect()
        assert key not in transparent._entries

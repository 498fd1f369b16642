"""A module that changes between its calls, or during one."""

from __future__ import annotations

import threading

import pytest
import torch
from fusewheel import jit
from fusewheel.jit import transparent
from torch import nn

from .gated import fused, gated, plain

pytestmark = pytest.mark.usefixtures("off_after")
X = torch.randn(3, 4)


CHANGES = {
    "in place": lambda m: m.weight.mul_(2),
    "data": lambda m: m.weight.data.copy_(torch.randn(4, 4)),
    "numpy": lambda m: m.weight.detach().numpy().fill(3.0),
    "load_state_dict": lambda m: m.load_state_dict({"weight": torch.randn(4, 4)}, strict=False),
    "assign": lambda m: setattr(m, "weight", nn.Parameter(torch.randn(4, 4))),
    "double": lambda m: m.double(),
    "shape": lambda m: setattr(m, "weight", nn.Parameter(torch.randn(1, 4))),
    "number": lambda m: setattr(m, "scale", 2.0),
    "in TorchScript": lambda m: m.set_scale(2.0),
    "part in training": lambda m: m.inner.train(),
}


@pytest.mark.matrix
@pytest.mark.parametrize("change", CHANGES)
def test_changes_are_seen(change):
    """The call after a change computes with what was changed, and so does each later one."""
    module = gated()
    with jit.enable():
        module(X)
        assert fused(module)
        CHANGES[change](module)
        x = X.to(module.weight.dtype)
        want = plain(module, x)
        for _ in range(3):
            torch.testing.assert_close(module(x), want)


def test_another_dtype_is_rewritten_anew():
    module = gated()
    with jit.enable():
        module(X)
        first = transparent._entries[id(module)].live
        module.double()
        module(X.double())
        assert fused(module)
        assert transparent._entries[id(module)].live is not first


class Slow:
    """A module's C++ half that waits in the middle of an assignment."""

    def __init__(self, real: torch._C.ScriptModule):
        self.real, self.entered, self.proceed = real, threading.Event(), threading.Event()

    def __getattr__(self, name: str):
        return getattr(self.real, name)

    def setattr(self, name: str, value: object) -> None:
        self.entered.set()
        assert self.proceed.wait(60)
        self.real.setattr(name, value)


def test_a_call_in_the_middle_of_an_assignment():
    """It may see the old weight or the new one; the call after it sees the new one."""
    module = gated()
    new = nn.Parameter(torch.randn(4, 4))
    with jit.enable():
        module(X)
        slow = Slow(module._c)
        module.__dict__["_c"] = slow
        writer = threading.Thread(target=setattr, args=(module, "weight", new))
        writer.start()
        assert slow.entered.wait(60)
        module(X)
        slow.proceed.set()
        writer.join()
        module.__dict__["_c"] = slow.real
        assert torch.equal(module.weight, new)
        torch.testing.assert_close(module(X), plain(module, X))


def test_attributes_that_keep_changing_end_the_rewriting(monkeypatch):
    calls = []
    real = transparent.lowered
    monkeypatch.setattr(transparent, "lowered", lambda *a: calls.append(1) or real(*a))
    module = gated()
    with jit.enable():
        for i in range(6):
            torch.testing.assert_close(module(X), plain(module, X))
            module.scale = i + 2.0
    assert len(calls) == transparent._ATTEMPTS

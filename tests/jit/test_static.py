"""The static runtime, each in a process of its own: what crashes shows."""

from __future__ import annotations

import pytest
import torch
from fusewheel import jit
from torch import Tensor, nn

from .nets import decoder, inputs

HEAD = (
    f"import sys\nsys.path.insert(0, {str(__file__).rsplit('/', 2)[0]!r})\n"
    + """
import threading
import torch
from fusewheel import jit
from jit.nets import as_torchscript, decoder, inputs
torch.set_grad_enabled(False)
model, example = decoder(), inputs()
static = jit.optimize(as_torchscript(model, HOW, example), example, runtime="static")
calls = []
run = static._runtime
static._runtime = lambda *a: calls.append(1) or run(*a)
"""
)


@pytest.mark.parametrize("how", ["script", "trace"])
def test_values(how, fresh):
    out = fresh(
        HEAD.replace("HOW", repr(how))
        + """
x, cos, sin = example
for sizes in ((2, 6), (3, 4), (2, 6)):
    given = inputs(torch.float32, *sizes)
    torch.testing.assert_close(static(*given), model(*given))
torch.testing.assert_close(static(x, sin=sin, cos=cos), model(*example))
print(len(calls))
given = inputs(torch.float32, 2, 1)
torch.testing.assert_close(static(*given), model(*given))
with torch.enable_grad():
    assert static(x.clone().requires_grad_(), cos, sin).requires_grad
with torch.autocast("cpu", torch.bfloat16):
    assert static(*example).dtype == model(*example).dtype
print(len(calls))
for bad in ((x, cos), (x, cos, sin, sin), (x, cos[:1], sin[..., :3])):
    try:
        static(*bad)
    except RuntimeError as error:
        print("RuntimeError")
kept = static(*example)
static(*inputs(torch.float32, 3, 4))
torch.testing.assert_close(kept, model(*example))
wrong = []
def work(batch):
    given = inputs(torch.float32, batch, 5)
    want = model(*given)
    for _ in range(50):
        if not torch.allclose(static(*given), want, atol=1e-5):
            wrong.append(batch)
threads = [threading.Thread(target=work, args=(batch,)) for batch in (2, 3, 4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(wrong)
"""
    )
    assert out.split("\n")[:-1] == ["4", "4", *["RuntimeError"] * 3, "[]"]


def test_control_flow_is_refused():
    class Loops(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            while bool(x.sum() < 10):
                x = x + 1
            return x

    with pytest.raises(jit.TorchScriptError, match=r"straight graphs only.* prim::"):
        jit.optimize(Loops().eval(), torch.ones(2, 2), runtime="static")


def test_no_example_is_refused():
    module = torch.jit.script(decoder())
    with pytest.raises(jit.TorchScriptError, match=r"needs to know the inputs.*example_inputs"):
        jit.optimize(module, runtime="static")


def test_another_runtime_is_refused():
    with pytest.raises(ValueError, match="runtime must be 'interpreter' or 'static', got 'fast'"):
        jit.optimize(decoder(), inputs(), runtime="fast")  # type: ignore[call-overload]


def test_what_saves_is_the_scripted_module(tmp_path):
    static = jit.optimize(decoder(), inputs(), runtime="static")
    torch.jit.save(static.scripted, str(tmp_path / "model.pt"))
    again = torch.jit.load(str(tmp_path / "model.pt"))
    torch.testing.assert_close(again(*inputs()), static(*inputs()))

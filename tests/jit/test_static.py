"""The static runtime, each in a process of its own: what crashes shows."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from fusewheel import jit
from fusewheel.jit.graph.regions import with_regions
from nightly import NIGHTLY
from torch import Tensor, nn

from .nets import decoder, inputs

HEAD = (
    f"import sys\nsys.path.insert(0, {str(__file__).rsplit('/', 2)[0]!r})\n"
    + """
import copy
import threading
import torch
from fusewheel import jit
from oracle import assert_program_as_good_as_eager, to_dtype
from jit.nets import as_torchscript, decoder, inputs
torch.set_grad_enabled(False)
model, example = decoder(), inputs()
static = jit.optimize(as_torchscript(model, HOW, example), example, runtime="static")
"""
)


@pytest.mark.parametrize("how", ["script", pytest.param("trace", marks=NIGHTLY)])
def test_values(how, fresh):
    """What the static runtime made are inference tensors, whatever else made them are not."""
    out = fresh(
        HEAD.replace("HOW", repr(how))
        + """
x, cos, sin = example
for sizes in ((2, 6), (3, 4), (2, 6)):
    given = inputs(torch.float32, *sizes)
    torch.testing.assert_close(static(*given), model(*given))
    print(static(*given).is_inference())
torch.testing.assert_close(static(x, sin=sin, cos=cos), model(*example))
given = inputs(torch.float32, 2, 1)
torch.testing.assert_close(static(*given), model(*given))
print(static(*given).is_inference())
with torch.enable_grad():
    assert static(x.clone().requires_grad_(), cos, sin).requires_grad
with torch.autocast("cpu", torch.bfloat16):
    assert static(*example).dtype == model(*example).dtype
for bad in ((x, cos), (x, cos, sin, sin), (x, cos[:1], sin[..., :3])):
    try:
        static(*bad)
    except RuntimeError as error:
        print("RuntimeError")
kept = static(*example)
static(*inputs(torch.float32, 3, 4))
torch.testing.assert_close(kept, model(*example))
wrong, twin = [], copy.deepcopy(model).double()
def work(batch):
    given = inputs(torch.float32, batch, 5)
    with torch.no_grad():
        want, exact = model(*given), twin(*to_dtype(given, torch.float64))
        for _ in range(200):
            try:
                assert_program_as_good_as_eager(static(*given), want, exact)
            except AssertionError as error:
                wrong.append(str(error))
threads = [threading.Thread(target=work, args=(batch,)) for batch in (2, 3, 4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(wrong)
"""
    )
    assert out.split("\n")[:-1] == [*["True"] * 3, "False", *["RuntimeError"] * 3, "[]"]


class Repeats(nn.Module):
    """A loop that no example decides, with a branch in it."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(16)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        while bool(x.abs().sum() < 100):
            x = F.silu(x + 0.5) * y + self.norm(x)
            if bool(x.sum() > 50):
                first, second = x.chunk(2, -1)
                x = torch.cat([second.exp(), first], -1)
        return self.norm(x), {"last": torch.cat([x, x + y])}


@pytest.mark.matrix
@pytest.mark.parametrize("scale", [0.05, 0.3, 10.0])
def test_branches_and_loops_stay_outside(scale):
    model = Repeats().eval()
    y = 1 + torch.rand(3, 16)
    static = jit.optimize(model, (torch.ones(3, 16), y), runtime="static")
    for rows in (3, 2):
        x = scale * torch.rand(rows, 16)
        got, want = static(x, y[:rows]), model(x, y[:rows])
        torch.testing.assert_close(got, want)


def test_parts_lie_in_branches_and_loops():
    graph = with_regions(torch.jit.freeze(torch.jit.script(_Grows().eval())).graph)
    (loop,) = graph.findAllNodes("prim::Loop", recurse=False)
    inner = [node.kind() for block in loop.blocks() for node in block.nodes()]
    assert inner == ["prim::StaticSubgraph"]
    function = torch._C._create_function_from_graph("grows", graph)
    x = torch.rand(3, 4)
    for _ in range(3):
        torch.testing.assert_close(function(x, 2), _Grows()(x, 2))


class _Grows(nn.Module):
    def forward(self, x: Tensor, steps: int) -> Tensor:
        for _ in range(steps):
            x = x.sin().cos().tanh().exp().sigmoid() + x.relu()
        return x + 1.0


class _Writes(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x.sin().cos()
        z = y.view(-1)
        while bool(y.sum() < 100):
            z.add_(1.0)
            y = y + F.silu(x) * x + F.gelu(y)
        return y


class _Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return F.silu(x) * x


class _Small(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sin() + 1


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (_Writes(), r"writes in place beside other nodes.*aten::add_ and prim::Loop"),
        (_Counts(), r"no module with state.*prim::"),
        (_Small(), r"no part of the graph that would become faster"),
    ],
    ids=["writes", "state", "small"],
)
def test_what_cannot_run_is_refused(model, message):
    with pytest.raises(jit.TorchScriptError, match=f"runtime='static' .*{message}"):
        jit.optimize(model.eval(), torch.ones(2, 2), runtime="static")


def test_no_example_is_refused():
    module = torch.jit.script(decoder())
    with pytest.raises(jit.TorchScriptError, match=r"needs to know the inputs.*example_inputs"):
        jit.optimize(module, runtime="static")


def test_another_runtime_is_refused():
    choices = "runtime must be 'interpreter', 'engine' or 'static', got 'fast'"
    with pytest.raises(ValueError, match=choices):
        jit.optimize(decoder(), inputs(), runtime="fast")  # type: ignore[call-overload]


def test_what_saves_is_the_scripted_module(tmp_path):
    static = jit.optimize(decoder(), inputs(), runtime="static")
    static(*inputs())
    torch.jit.save(static.scripted, str(tmp_path / "model.pt"))
    again = torch.jit.load(str(tmp_path / "model.pt"))
    torch.testing.assert_close(again(*inputs()), static(*inputs()))

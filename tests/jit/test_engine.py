"""``runtime="engine"``: programs in a TorchScript module."""

from __future__ import annotations

import functools
import io
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fusewheel import jit
from torch import Tensor, nn

from .nets import as_torchscript, decoder, inputs


def programs(module: Any) -> int:
    return len(module.inlined_graph.findAllNodes("fusewheel::run"))


def saved_and_loaded(module: Any) -> Any:
    file = io.BytesIO()
    torch.jit.save(module, file)
    file.seek(0)
    return torch.jit.load(file)


@functools.cache  # and no fixture: Python may have no TorchScript
def optimized(how: str) -> Any:
    """The decoder with programs."""
    example = inputs()
    return jit.optimize(as_torchscript(decoder(), how, example), example, runtime="engine")


@pytest.mark.parametrize("how", ["script", "trace"])
def test_values(how: str) -> None:
    """The bits are those without programs, for all sizes, and after it was saved."""
    model, example, engine = decoder(), inputs(), optimized(how)
    plain = jit.optimize(as_torchscript(model, how, example), example)
    assert programs(engine) > 0
    for module in (engine, saved_and_loaded(engine)):
        for sizes in ((2, 6), (3, 4), (2, 1)):
            given = inputs(torch.float32, *sizes)
            torch.testing.assert_close(module(*given), plain(*given), rtol=0, atol=0)
            torch.testing.assert_close(module(*given), model(*given))


def test_other_inputs_run_without_programs() -> None:
    model, example, engine = decoder(), inputs(), optimized("script")
    x, cos, sin = example
    with torch.enable_grad():
        asked = x.clone().requires_grad_()
        engine(asked, cos, sin).sum().backward()
        assert asked.grad is not None and asked.grad.any()
    with torch.autocast("cpu", torch.bfloat16):
        assert engine(*example).dtype == model(*example).dtype
    turned = x.transpose(0, 1).contiguous().transpose(0, 1)
    torch.testing.assert_close(engine(turned, cos, sin), model(*example))


def test_threads_share_a_module() -> None:
    engine = optimized("script")
    given = [inputs(torch.float32, batch, 5) for batch in (1, 2, 3, 4)]
    with torch.no_grad():
        expected = [engine(*one) for one in given]
    wrong = []

    def work(index: int) -> None:
        with torch.no_grad():
            for _ in range(20):
                if not torch.equal(engine(*given[index]), expected[index]):
                    wrong.append(index)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


class Views(nn.Module):
    """Views of results leave it, and a branch stands between two parts."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(8, 8)

    def forward(self, x: Tensor, twice: bool) -> tuple[Tensor, Tensor, Tensor, int]:
        y = self.first(x)
        gate, up = y.chunk(2, -1)
        z = F.silu(gate) * up
        if twice:
            z = torch.sort(z).values
        w = self.second(z).tanh().view(z.shape[0], -1, 4)
        return z, w.transpose(0, 1), w.reshape(-1).sigmoid(), y.shape[0]


@pytest.mark.parametrize("twice", [True, False])
def test_views_that_leave_a_program(twice: bool) -> None:
    model, example = Views().eval(), (torch.randn(6, 8), twice)
    script = torch.jit.script(model)
    engine = jit.optimize(script, example, runtime="engine")
    plain = jit.optimize(script, example)
    assert programs(engine) > 0
    for rows in (6, 2):
        given = torch.randn(rows, 8), twice
        for got, expected in zip(engine(*given), plain(*given), strict=True):
            if isinstance(expected, Tensor):
                assert got.stride() == expected.stride()
                assert torch.equal(got, expected)
            else:
                assert got == expected


def test_where_nothing_can_be_a_program() -> None:
    class Sorted(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.sort(x).values

    engine = jit.optimize(Sorted().eval(), torch.randn(3), runtime="engine")
    assert programs(engine) == 0
    assert torch.equal(engine(torch.tensor([2.0, 1.0])), torch.tensor([1.0, 2.0]))


def test_runtime_has_three_names() -> None:
    with pytest.raises(ValueError, match="must be 'interpreter', 'engine' or 'static', got 'x'"):
        jit.optimize(decoder(), inputs(), runtime="x")  # type: ignore[call-overload]


def test_without_this_package(fresh: Callable[..., str], tmp_path: Path) -> None:
    """A file needs the kernel library, and no Python of ours."""
    import fusewheel_cpu

    example, engine = inputs(), optimized("script")
    engine.save(str(tmp_path / "model.pt"))
    torch.save((example, engine(*example)), tmp_path / "data.pt")
    out = fresh(
        "import sys, torch\n"
        f"torch.ops.load_library({str(fusewheel_cpu.library)!r})\n"
        "module = torch.jit.load('model.pt')\n"
        "example, expected = torch.load('data.pt')\n"
        "with torch.no_grad():\n"
        "    assert torch.equal(module(*example), expected)\n"
        "print('fusewheel' in sys.modules)\n"
    )
    assert out == "False\n"

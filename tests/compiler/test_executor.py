"""``inner="none"``: the graph as one Python function, which does what the graph does."""

from __future__ import annotations

import gc
import linecache
import traceback
import weakref
from typing import Any

import fusewheel
import pytest
import torch
import torch.nn.functional as F
from fusewheel.compiler.run import execute
from torch._dynamo.exc import BackendCompilerFailed
from torch.utils.checkpoint import checkpoint

assert fusewheel
Tensor = torch.Tensor


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def test_values_and_gradients(compare: Any) -> None:
    def f(x: Tensor, w: Tensor, gate: Tensor) -> Tensor:
        h = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return swiglu(gate, w * h).sum(-1)

    x, w, gate = (torch.randn(*s, requires_grad=True) for s in ((5, 8), (8,), (5, 8)))
    report = compare(f, x, w, gate, inner="none")
    assert report.counts() == {"rms_norm": 1, "silu_mul": 1}


def test_double_backward() -> None:
    call = torch.compile(swiglu, backend="fusewheel", options={"inner": "none"})
    inputs = torch.randn(3, 4).double().requires_grad_(), torch.randn(3, 4).double()
    assert torch.autograd.gradgradcheck(call, inputs)


@pytest.mark.parametrize(
    ("mode", "options"), [(None, {"max_autotune": True}), ("max-autotune", {})]
)
def test_options_and_modes_are_refused(mode: str | None, options: dict[str, Any]) -> None:
    def compiler(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        own = {"inner": "none", **options}
        return fusewheel.compiler.backend(gm, inputs, mode=mode, options=own)

    with pytest.raises(BackendCompilerFailed, match="because it compiles nothing: got mode"):
        torch.compile(swiglu, backend=compiler)(torch.ones(2), torch.ones(2))


def test_dynamic_shapes_compile_once() -> None:
    def f(x: Tensor) -> Tensor:
        positions = torch.arange(x.shape[0])[:, None]
        return swiglu(x.reshape(x.shape[0], -1), x) + positions

    compiled = []

    def backend(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        compiled.append(gm)
        return fusewheel.compiler.backend(gm, inputs, options={"inner": "none"})

    call = torch.compile(f, backend=backend, dynamic=True)
    for rows in (3, 7, 2, 30):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(call(x), f(x))
    assert len(compiled) == 1


def test_nothing_is_held_longer_than_needed() -> None:
    """A value is gone after its last use, and all of them after the call."""
    alive: list[int] = []
    kept: list[weakref.ref[Tensor]] = []

    def watch(x: Tensor) -> Tensor:
        alive.append(sum(ref() is not None for ref in kept))
        kept.append(weakref.ref(x))
        return x * 1

    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    for _ in range(4):
        x = graph.call_function(watch, (x,))
    graph.output((graph.call_method("cos", (x,)),))
    function = execute(torch.fx.GraphModule({}, graph))
    (result,) = function(torch.ones(3))
    torch.testing.assert_close(result, torch.ones(3).cos())
    # The input is the caller's.
    assert alive == [0, 1, 1, 1]
    assert not any(ref() is not None for ref in kept)


def test_checkpointing_and_modes(compare: Any) -> None:
    def block(x: Tensor, w: Tensor) -> Tensor:
        with torch.no_grad():
            scale = x.detach().abs().amax()
        return swiglu(x @ w, x) / scale

    def f(x: Tensor, w: Tensor) -> Tensor:
        return checkpoint(block, x, w, use_reentrant=False) + x

    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
    assert compare(f, x, w, inner="none").counts() == {"silu_mul": 1}
    with torch.autocast("cpu", torch.bfloat16):
        compare(f, x, w, inner="none")


def test_an_error_names_the_users_line() -> None:
    graph = torch.fx.Graph()
    graph.output((graph.call_method("cos", (graph.placeholder("x"),)),))
    made = execute(torch.fx.GraphModule({}, graph))
    with pytest.raises(AttributeError) as caught:
        made(1)
    assert "x.cos()" in "".join(traceback.format_tb(caught.tb))


def test_an_error_under_no_grad_leaves_gradients_on() -> None:
    def f(table: Tensor, rows: Tensor) -> Tensor:
        with torch.no_grad():
            found = F.embedding(rows, table)
        return swiglu(found, table[:1])

    call = torch.compile(f, backend="fusewheel", options={"inner": "none"})
    table = torch.randn(3, 4, requires_grad=True)
    call(table, torch.tensor([2]))
    with pytest.raises(IndexError):
        call(table, torch.tensor([3]))
    assert torch.is_grad_enabled()


def _kept_lines() -> set[str]:
    gc.collect()
    return {name for name in linecache.cache if name.startswith("<fusewheel graph")}


def test_the_lines_go_with_the_compiled_function() -> None:
    torch.compiler.reset()
    before = _kept_lines()
    call = torch.compile(swiglu, backend="fusewheel", options={"inner": "none"})
    for size in (2, 3):  # the second graph is for any size
        call(torch.ones(size), torch.ones(size))
    assert len(_kept_lines() - before) == 2
    torch.compiler.reset()
    assert _kept_lines() <= before


def test_attributes_submodules_and_structures() -> None:
    class Owner(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(torch.nn.Linear(2, 2))
            self.register_buffer("scale", torch.tensor(2.0))

    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    half = graph.placeholder("half", default_value=1)
    y = graph.call_module("layers.0", (x,))
    z = graph.call_function(torch.mul, (y, graph.get_attr("scale")))
    part = graph.call_function(torch.ops.aten.slice.Tensor, (z, 1, 0, half))
    same = graph.call_method("__getitem__", (z, (slice(None), slice(0, half))))
    graph.output({"parts": [part, same], "z": (z, None)})
    owner = Owner()
    expected = torch.fx.GraphModule(owner, graph)(torch.ones(3, 2))
    torch.testing.assert_close(
        execute(torch.fx.GraphModule(owner, graph))(torch.ones(3, 2)), expected
    )

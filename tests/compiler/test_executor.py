"""``inner="none"``: the graph as one Python function, and what it need not run."""

from __future__ import annotations

import re
import traceback
import weakref
from collections.abc import Callable
from typing import Any

import fusewheel
import pytest
import torch
import torch.nn.functional as F
from fusewheel.compiler.executor import execute
from torch._dynamo.exc import BackendCompilerFailed
from torch.utils.checkpoint import checkpoint

assert fusewheel
Tensor = torch.Tensor


def steps(function: Callable[..., Any], *inputs: Any, dynamic: bool = False) -> list[str]:
    """The lines of the function that is run, without the user's lines; results are compared."""
    sources: list[str] = []

    def backend(gm: torch.fx.GraphModule, example_inputs: Any) -> Any:
        made = execute(gm)
        found = traceback.linecache.getlines(made.__code__.co_filename)
        sources.extend(line.rpartition("  # ")[0].strip() or line.strip() for line in found[1:])
        return made

    compiled = torch.compile(function, backend=backend, dynamic=dynamic)
    own, other = (
        [
            i.detach().clone().requires_grad_(i.requires_grad) if isinstance(i, Tensor) else i
            for i in inputs
        ]
        for _ in range(2)
    )
    torch.testing.assert_close(compiled(*own), function(*other))
    torch.testing.assert_close(own, other)
    return sources


def count(lines: list[str], what: str) -> int:
    """How many lines call it."""
    return sum(re.search(rf"\b{what}_*\(", line) is not None for line in lines)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def test_values_and_gradients(compare: Any) -> None:
    def f(x: Tensor, w: Tensor, gate: Tensor) -> Tensor:
        h = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return swiglu(gate, w * h).sum(-1)

    x, w, gate = (torch.randn(*s, requires_grad=True) for s in ((5, 8), (8,), (5, 8)))
    report = compare.oracle(f, x, w, gate, inner="none")
    assert report.counts() == {"rms_norm": 1, "silu_mul": 1}


def test_double_backward() -> None:
    call = torch.compile(swiglu, backend="fusewheel", options={"inner": "none"})
    inputs = torch.randn(3, 4).double().requires_grad_(), torch.randn(3, 4).double()
    assert torch.autograd.gradgradcheck(call, inputs)


def test_options_and_modes_are_refused() -> None:
    for settings in (
        {"options": {"inner": "none", "max_autotune": True}},
        {"mode": "max-autotune"},
    ):
        with pytest.raises(BackendCompilerFailed, match=r"expected neither, got mode|max_autotune"):
            options = {"inner": "none", **settings.pop("options", {})}  # type: ignore[dict-item]
            mode = settings.get("mode")
            compiled = fusewheel.compiler.backend
            torch.compile(
                swiglu,
                backend=lambda gm, i: compiled(gm, i, mode=mode, options=options),  # noqa: B023
            )(torch.ones(2), torch.ones(2))


def test_equal_values_are_computed_once() -> None:
    def f(x: Tensor) -> Tensor:
        for _ in range(3):
            x = x + torch.cos(torch.arange(4.0) + x.shape[0]) + x.detach().mean().cos()
        return x

    lines = steps(f, torch.randn(5, 4))
    assert count(lines, "arange") == 0 and count(lines, "cos") == 3
    # Of a size that is not known the position is no constant, but still one value.
    assert count(steps(f, torch.randn(5, 4), dynamic=True), "cos") == 4


def test_different_values_are_not_shared() -> None:
    """1, 1.0 and True are equal and hash alike."""

    def f(x: Tensor) -> list[Tensor]:
        return [torch.full((2,), value) + x for value in (1, 1.0, True, 0.0, -0.0)]

    steps(f, torch.zeros(2, dtype=torch.int64))
    results = torch.compile(f, backend="fusewheel", options={"inner": "none"})(
        torch.zeros(2).long()
    )
    assert [r.dtype for r in results] == [r.dtype for r in f(torch.zeros(2).long())]


def test_gradients_are_summed_as_in_eager() -> None:
    """A value with a gradient is not shared."""
    lines = steps(lambda x, w: x * w.cos() + w.cos(), torch.randn(3), torch.randn(3))
    assert count(lines, "cos") == 1
    lines = steps(
        lambda x, w: x * w.cos() + w.cos(), torch.randn(3), torch.nn.Parameter(torch.ones(3))
    )
    assert count(lines, "cos") == 2


RANDOM: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout": lambda x: F.dropout(torch.ones(64), 0.5) * x,
    "rand": lambda x: torch.rand(64) * x,
    "randn_like": lambda x: torch.randn_like(x) * x,
    "bernoulli": lambda x: torch.ones(64).bernoulli(0.5) * x,
    "attention": lambda x: F.scaled_dot_product_attention(*[x.view(1, 8, 8)] * 3, dropout_p=0.5),
}


@pytest.mark.parametrize("case", RANDOM)
def test_random_numbers_are_drawn_anew(case: str) -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        draw = RANDOM[case]
        draw(x)  # unused, but it moves the generator on
        return draw(x) + 0, draw(x) + 0

    call = torch.compile(f, backend="fusewheel", options={"inner": "none"})
    x = torch.rand(64) + 1
    torch.manual_seed(3)
    first, second = call(x)
    again, _ = call(x)
    assert not torch.equal(first, second) and not torch.equal(first, again)
    torch.manual_seed(3)
    torch.testing.assert_close((first, second), f(x))


WRITES: dict[str, Callable[[Tensor], Any]] = {
    "between": lambda x: (x.cos().clone(), x.add_(1), x.cos() * 2)[::2],
    "first": lambda x: ((c := x.cos()).add_(1), x.cos() * c)[1],
    "second": lambda x: (c := x.cos(), (d := x.cos()).mul_(3), c * d)[2],
    "view": lambda x: (c := x.cos(), x.cos()[:1].zero_(), c * x.cos())[2],
    "constant": lambda x: (c := torch.arange(3.0).unsqueeze(0), c.add_(x[:3]), c + 1)[2],
    "copy": lambda x: (c := x.view(6), c.add_(1), x * 2)[2],
    "float": lambda x: (c := x.float(), c.add_(1), x * 2)[2],
    "item": lambda x: (c := x.cos(), c.__setitem__(0, 3.0), c + x.cos())[2],
}


@pytest.mark.parametrize("case", WRITES)
def test_writes_in_place_are_respected(case: str) -> None:
    steps(WRITES[case], torch.randn(6))
    call = torch.compile(WRITES[case], backend="fusewheel", options={"inner": "none"})
    x, y = torch.ones(6), torch.ones(6)
    for _ in range(2):  # a constant that was written would differ the second time
        torch.testing.assert_close(call(x), WRITES[case](y))
        torch.testing.assert_close(x, y)


def test_what_is_returned_is_the_callers() -> None:
    """Results are never one tensor where eager gives two, and never a constant of the graph."""

    def f(x: Tensor) -> tuple[Tensor, ...]:
        return x.cos(), x.cos(), torch.arange(6) + 0, x.view(6), x.contiguous()

    call = torch.compile(f, backend="fusewheel", options={"inner": "none"})
    x = torch.randn(6)
    first, second, position, view, same = call(x)
    first.zero_()
    position.zero_()
    torch.testing.assert_close(second, x.cos())
    torch.testing.assert_close(call(x)[2], torch.arange(6))
    assert same is x and view is not x and view._base is x


def test_conversions_that_change_nothing_are_left_out() -> None:
    def f(x: Tensor) -> Tensor:
        y = x.contiguous().float().reshape(2, 3).to(torch.float32).expand(2, 3)
        return y.transpose(0, 1).contiguous() + y.t()

    lines = steps(f, torch.randn(2, 3))
    assert not any(count(lines, name) for name in ("float", "reshape", "to", "expand"))
    assert count(lines, "contiguous") == 1  # this one copies


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_conversion_of_a_shared_mask(dtype: torch.dtype) -> None:
    def f(q: Tensor, mask: Tensor) -> Tensor:
        for _ in range(3):
            q = F.scaled_dot_product_attention(q, q, q, mask)
        return q

    q, mask = torch.randn(2, 2, 4, 8, dtype=dtype), torch.ones(4, 4).tril().bool()
    mask[2] = False  # a row that sees nothing
    lines = steps(f, q, mask)
    assert count(lines, "additive") == 1 and count(lines, "scaled_dot_product_attention") == 3

    def written(q: Tensor, mask: Tensor) -> Tensor:
        first = F.scaled_dot_product_attention(q, q, q, mask)
        mask.logical_not_()
        return F.scaled_dot_product_attention(first, q, q, mask)

    assert count(steps(written, q, mask), "additive") == 0
    with torch.autocast("cpu", torch.bfloat16):
        assert count(steps(f, q, mask), "additive") == 0


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
    assert compare.oracle(f, x, w, inner="none").counts() == {"silu_mul": 1}
    with torch.autocast("cpu", torch.bfloat16):
        compare(f, x, w, inner="none", tolerance=1e-6)


def test_an_error_names_the_users_line() -> None:
    graph = torch.fx.Graph()
    graph.output((graph.call_method("cos", (graph.placeholder("x"),)),))
    made = execute(torch.fx.GraphModule({}, graph))
    with pytest.raises(AttributeError) as caught:
        made(1)
    assert "x.cos()" in "".join(traceback.format_tb(caught.tb))


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

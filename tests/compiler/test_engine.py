"""``inner="engine"``: parts of a graph become programs, and every value stays what it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from compiler.graphs import captured
from compiler.lowered import Engine, compare, same
from fusewheel.compiler.ir.pattern import Context
from fusewheel.compiler.lower.engine import lower
from torch import Tensor


def test_views_that_leave_a_program() -> None:
    def function(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        y = F.linear(x, weight)
        a, b = y.chunk(2, -1)
        heads = y.view(2, 3, 4, 2).transpose(1, 2)
        return heads, a, F.silu(a) * b, heads.reshape(2, 4, 6)

    engine = compare(function, torch.randn(2, 3, 8), torch.randn(8, 8))
    assert engine.programs() == [1]


def test_outputs_share_memory_as_before() -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        y = F.silu(x).cos()
        return y, y[1:], y.t()

    engine = Engine()
    with torch.no_grad():
        y, rest, turned = torch.compile(function, backend=engine)(torch.randn(3, 4))
    y.zero_()
    assert not rest.any() and not turned.any() and engine.programs() == [1]


def test_writes_end_a_program() -> None:
    def function(x: Tensor, state: Tensor) -> tuple[Tensor, ...]:
        y = F.silu(x).cos()
        state.add_(y)
        z = state.sin().exp()
        y.mul_(2)
        return y.cos().sin(), z

    results = []
    for backend in (Engine("none"), engine := Engine()):
        torch.compiler.reset()
        x, state = torch.ones(3, 4), torch.arange(12.0).view(3, 4)
        with torch.no_grad():
            results.append([*torch.compile(function, backend=backend)(x, state), state])
    same(results[1], results[0])
    assert engine.programs() == [3]


def test_what_does_not_depend_on_a_program_stays_in_front() -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        a = F.silu(x).cos()
        b = torch.cumsum(y, 0)  # no step
        return a.sin() * b, b

    assert compare(function, torch.randn(3, 4), torch.randn(3, 4)).programs() == [1]


def test_a_weight_is_not_copied_for_a_row_of_heads() -> None:
    weight = torch.randn(8, 32)

    def project(q: Tensor) -> Tensor:
        heads = F.scaled_dot_product_attention(q, q, q)
        return F.linear(heads.transpose(1, 2).reshape(1, 1, 32), weight)

    q = torch.randn(1, 4, 1, 8)
    engine = compare(project, q)
    assert engine.programs() == [1]
    compiled = torch.compile(project, backend=engine)
    with torch.no_grad(), torch.profiler.profile() as profile:
        compiled(q)
    called = {event.key for event in profile.key_averages()}
    assert "aten::linear" in called and "aten::bmm" not in called


def test_the_bytes_of_another_dtype() -> None:
    """As in the blocks of a GGUF file: two bytes are a scale, the others are codes."""

    def dequantized(ids: Tensor, weight: Tensor) -> Tensor:
        blocks = F.embedding(ids, weight)
        scale = blocks[..., :2].clone(memory_format=torch.contiguous_format).view(torch.float16)
        return scale.float() * blocks[..., 2:].float() + 1

    blocks = torch.randint(256, (10, 34), dtype=torch.uint8)
    engine = compare(dequantized, torch.randint(10, (3, 5)), blocks)
    assert engine.programs() == [2]


def test_what_is_no_step_divides_programs() -> None:
    def function(x: Tensor) -> Tensor:
        y = torch.sort(F.silu(x).cos()).values
        return y.sin().exp()

    assert compare(function, torch.randn(3, 4)).programs() == [2]


def test_numbers_beside_tensors() -> None:
    def function(x: Tensor, n: Tensor) -> tuple[Tensor, ...]:
        return (x * 0.1 + 3).cos() / 7, (2 * x).sin() * True, n * 3, n + 1, n * 1.5

    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        compare(function, torch.randn(3, 4, dtype=dtype), torch.arange(4))


def test_what_stands_in_usual_models() -> None:
    """None of it ends a program: dropout that is off, comparisons, products with a bias."""

    def function(x: Tensor, weight: Tensor, n: Tensor) -> tuple[Tensor, ...]:
        y = F.dropout(torch.addmm(weight[0], x, weight), 0.5, training=False)
        share = torch.softmax(y, -1) + F.softmax(y, 0, dtype=torch.float32)
        return share * (y > 0), n < 2, n.eq(1), x.cos() != 0.5, n * 3

    given = torch.randn(4, 4), torch.randn(4, 4), torch.arange(4)
    engine = compare(function, *given)
    assert engine.programs() == [1]
    assert F.dropout not in engine.calls()


def test_sizes_of_what_a_program_computes() -> None:
    """Some are used inside of the program, some by what follows."""

    def function(x: Tensor, past: Tensor) -> tuple[Any, ...]:
        both = torch.cat([past, x], 1).cos()
        batch, rows, size = both.shape
        wide = both[:, :, None].expand(batch, rows, 2, size).reshape(batch, 2 * rows, both.size(-1))
        return wide.sin(), torch.sort(both.sin().exp()).values.view(batch, rows * size), rows

    engine = Engine()
    call = torch.compile(function, backend=engine, dynamic=True)
    with torch.no_grad():
        for length in (5, 7):
            x, past = torch.randn(2, 3, 4), torch.randn(2, length, 4)
            same(call(x, past), function(x, past))
    assert engine.programs() == [1]


def test_a_view_of_an_input_as_large_as_what_a_program_computes() -> None:
    """As the mask of the first GPT: that the length can be no other is seen behind it."""

    def function(x: Tensor, mask: Tensor) -> Tensor:
        y = F.silu(x).cos()
        part = mask[: y.size(0)]
        return (y * part).sin() + torch.cumsum(part, 0) + torch.ones(3, 4)

    engine = compare(function, torch.randn(3, 4), torch.randn(8, 4), dynamic=True)
    assert engine.programs() == [2]


def test_a_view_of_a_result_as_large_as_an_input() -> None:
    """As the keys of Bart: the size of the encoder's states is read behind the last product."""

    def function(x: Tensor, states: Tensor) -> Tensor:
        y = F.silu(x).cos()
        return torch.cumsum(y.view(states.size(0), -1), 0)

    gm = captured(function, torch.randn(3, 4), torch.randn(3))
    lower(Context(gm.graph))
    gm.graph.lint()
    assert any(node.target is torch.ops.fusewheel.run.default for node in gm.graph.nodes)


def test_any_size() -> None:
    def function(x: Tensor, past: Tensor) -> tuple[Tensor, ...]:
        both = torch.cat([past, x], 1)
        return both, both[:, 1:].reshape(2, -1).cos(), both.transpose(0, 1).contiguous().sin()

    engine = Engine()
    call = torch.compile(function, backend=engine, dynamic=True)
    with torch.no_grad():
        for length in (5, 7, 9):
            x, past = torch.randn(2, 3, 4), torch.randn(2, length, 4)
            same(call(x, past), function(x, past))
    assert engine.programs() == [1]


def test_an_operator_of_somebody_else() -> None:
    import fusewheel

    with torch.library._scoped_library("engine_of_mine", "DEF") as library:
        library.define("twice(Tensor x, *, float by=2.0) -> Tensor")
        library.impl("twice", lambda x, *, by=2.0: x * by, "CPU")
        library._register_fake("twice", lambda x, *, by=2.0: torch.empty_like(x))

        def function(x: Tensor) -> Tensor:
            return torch.ops.engine_of_mine.twice(x.cos().sin(), by=3.0).cos().sin()

        assert compare(function, torch.randn(3, 4)).programs() == [2]
        fusewheel.engine.add_step(torch.ops.engine_of_mine.twice.default)
        assert compare(function, torch.randn(3, 4)).programs() == [1]


def test_values_that_are_known_already() -> None:
    def function(x: Tensor) -> Tensor:
        return F.silu(x).cos() * torch.arange(4.0).cos().sin()

    compare(function, torch.randn(3, 4))


def test_what_known_values_come_from_is_no_step() -> None:
    """As the slopes of MPT: one of their operations is none that programs know."""

    def function(x: Tensor) -> Tensor:
        return F.silu(x).cos() * (1 / torch.pow(2, torch.arange(4).float() + 1))

    engine = compare(function, torch.randn(3, 4))
    run = engine.graphs[0].graph.find_nodes(
        op="call_function", target=torch.ops.fusewheel.run.default
    )
    assert [len(node.meta["example_value"]) for node in run] == [1]


def test_the_memory_of_results_is_known() -> None:
    context = Context(captured(lambda x: x.sin().cos().t(), torch.randn(3, 4)).graph)
    lower(context)
    *_, run, result, turned, output = context.graph.nodes
    assert run.target is torch.ops.fusewheel.run.default
    assert context.effects.sharing(result) == [turned, output, run, result]


def test_training_and_autocast_have_no_programs() -> None:
    layer = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.SiLU(), torch.nn.Linear(4, 4))
    for training in (True, False):
        torch.compiler.reset()
        engine = Engine()
        with (
            torch.set_grad_enabled(training),
            torch.autocast("cpu", torch.bfloat16, enabled=not training),
        ):
            y = torch.compile(layer, backend=engine)(torch.randn(3, 4))
        assert y.requires_grad == training
        assert engine.programs() == [0]


def test_the_backend_chooses_programs_where_they_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    def chain(length: int) -> Any:
        def function(x: Tensor) -> Tensor:
            for _ in range(length):
                x = fusewheel.silu_mul(x, x)
            return x

        return function

    import fusewheel
    from fusewheel.compiler.entry import dynamo

    monkeypatch.setattr(dynamo, "_chosen", lambda gm, worthwhile: "none")
    for length, gradient, programs in ((40, False, 1), (20, False, 0), (40, True, 0)):
        torch.compiler.reset()
        engine = Engine(None)
        x = torch.randn(3, 4, requires_grad=gradient)
        y = torch.compile(chain(length), backend=engine)(x)
        same(y.detach(), chain(length)(x).detach())
        assert engine.programs() == [programs] and y.requires_grad == gradient


def test_a_mistake_of_ours_leaves_the_graph_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    from fusewheel.compiler.lower import engine

    def broken(*arguments: object) -> None:
        raise AssertionError

    monkeypatch.setattr(engine, "write_program", broken)
    monkeypatch.delenv("FUSEWHEEL_COMPILER_STRICT", raising=False)
    assert compare(lambda x: x.cos().sin(), torch.randn(3)).programs() == [0]


def test_the_option_takes_no_others() -> None:
    call = torch.compile(torch.cos, backend="fusewheel", options={"inner": "engine", "x": 1})
    with pytest.raises(Exception, match='inner "engine" takes neither a mode nor other options'):
        call(torch.ones(2))


def test_explain_shows_programs_and_why_they_end() -> None:
    import fusewheel

    def function(x: Tensor) -> Tensor:
        y = F.silu(x).cos()
        y = torch.sort(y).values
        return y.sin().exp()

    with torch.no_grad():
        report = fusewheel.explain(function, torch.randn(3, 4))
    first, second = report.programs
    assert (first.steps, first.lowered, first.reason) == (2, True, "sort is no step")
    assert first.code == "y = torch.sort(y).values" and first.source != first.end
    assert second.reason == "the graph ends"
    assert "ends at test_engine.py:" in str(report) and "program" in str(report)
    assert report.to_dict()["programs"][0]["steps"] == 2
    # Training has no programs.
    assert not fusewheel.explain(function, torch.randn(3, 4, requires_grad=True)).programs

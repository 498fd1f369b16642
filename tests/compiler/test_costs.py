"""The sizes up to which an operator is slower, as they are shipped, decide what is replaced."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable
from typing import Any

import fusewheel
import pytest
import torch
import torch.nn.functional as F
from fresh import loss
from fusewheel.compiler import rewrite
from fusewheel.compiler.cost import rules
from fusewheel.compiler.ir.pattern import Pattern
from fusewheel.compiler.patterns import all_patterns
from torch import Tensor
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint

SMALL = 4608  # elements; up to there silu_mul is slower
NO_LOSS: list[str] = []
LIMITED = [p for p in all_patterns() if p.pays_above != type(p.pays_above)()]


@pytest.fixture(autouse=True)
def _shipped(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests of other things switch the sizes off."""
    monkeypatch.setattr(rules, "loss", loss)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def pair(elements: int, **options: Any) -> list[Tensor]:
    return [torch.randn(elements, **options) for _ in range(2)]


def captured(
    function: Callable[..., Any], *inputs: Tensor, **settings: Any
) -> torch.fx.GraphModule:
    graphs: list[torch.fx.GraphModule] = []

    def backend(gm: torch.fx.GraphModule, example_inputs: Any) -> Callable[..., Any]:
        graphs.append(gm)
        return gm.forward

    torch.compiler.reset()
    torch.compile(function, backend=backend, **settings)(*inputs)
    (graph,) = graphs
    return graph


def refused(*inputs: Tensor, inner: str | None, **settings: Any) -> list[str]:
    """Why it is left alone."""
    report = rewrite(captured(swiglu, *inputs, **settings), inner=inner)
    assert report.count("silu_mul") + len(report.refusals) == 1
    return [refusal.reason for refusal in report.refusals]


@pytest.mark.parametrize(
    ("inner", "training", "rival"),
    [
        ("none", False, None),
        ("none", True, "PyTorch's operators are"),
        ("inductor", False, "Inductor's code is"),
        ("inductor", True, "Inductor's code is"),
        ("eager", False, None),
        (None, True, None),
    ],
)
@pytest.mark.parametrize("elements", [1, 100, SMALL, SMALL + 1, 1 << 20])
def test_sizes(elements: int, inner: str | None, training: bool, rival: str | None) -> None:
    direction = "forward and backward" if training else "forward"
    expected = [f"{elements} elements, {direction}: {rival} faster up to {SMALL} elements"]
    reasons = refused(*pair(elements, requires_grad=training), inner=inner)
    assert reasons == (NO_LOSS if rival is None or elements > SMALL else expected)


def test_gradients_that_are_switched_off_do_not_count() -> None:
    inputs = pair(9, requires_grad=True)
    assert refused(*inputs, inner="none") != NO_LOSS
    with torch.no_grad():
        assert refused(*inputs, inner="none") == NO_LOSS


def test_where_sizes_are_not_known_it_is_replaced() -> None:
    assert refused(*pair(64, device="meta"), inner="inductor") == NO_LOSS
    # The next call may have more elements.
    assert refused(*pair(64), inner="inductor", dynamic=True) == NO_LOSS


def test_a_weight_of_known_size_does_not_stand_for_the_rest() -> None:
    x, weight = torch.randn(3, 8), torch.randn(8)
    torch._dynamo.mark_dynamic(x, 0)
    graph = captured(lambda x: F.rms_norm(x, (8,), weight), x)
    assert rewrite(graph, inner="inductor").counts() == {"rms_norm": 1}
    graph = captured(lambda x: F.rms_norm(x, (8,), weight), torch.randn(3, 8))
    assert rewrite(graph, inner="inductor").counts() == {}


def decided(pattern: Pattern, elements: int, inner: str, training: bool) -> bool:
    """Whether the operator of a pattern is kept at a number of elements."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    value = torch.empty((), requires_grad=training).expand(elements)
    x.meta["example_value"] = value
    node = graph.call_function(pattern.overload(), (x,))
    node.meta["example_value"] = value
    return rules.loss(node, inner, pattern) is None


@pytest.mark.parametrize("pattern", LIMITED, ids=lambda pattern: pattern.name)
def test_every_shipped_size(pattern: Pattern) -> None:
    """It is refused up to the size and accepted above it: never again at a larger one."""
    for inner, training in itertools.product(("none", "inductor"), (False, True)):
        limit = pattern.pays_above.limit(inner, training)
        sizes = sorted({0, 1, 64, 576, 4608, 9216, 1 << 20, 1 << 40, limit, limit + 1})
        found = [decided(pattern, size, inner, training) for size in sizes]
        assert found == [size > limit or not limit for size in sizes]


def test_what_has_a_size() -> None:
    """That each is the one of the tables, tests/benchmarks/test_costs.py shows."""
    assert {pattern.name for pattern in LIMITED} == {
        *("rms_norm", "layer_norm", "add_rms_norm", "add_layer_norm", "rope", "gelu"),
        *("silu_mul", "gelu_mul", "silu_mul_packed", "gelu_mul_packed"),
    }


@pytest.mark.parametrize("elements", [(1 << 20) - 1, 1 << 20, (1 << 20) + 1])
def test_gelu_in_bfloat16_of_a_million_elements(elements: int) -> None:
    """It was refused at exactly the number of elements that had been measured."""
    x = torch.randn(elements, dtype=torch.bfloat16)
    for inner in ("none", "inductor"):
        assert rewrite(captured(F.gelu, x), inner=inner).counts() == {"gelu": 1}


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """What runs the rewritten graph, as the rewriter is told; Inductor does not run."""
    found: list[str | None] = []
    module = importlib.import_module("fusewheel.compiler.entry.dynamo")

    def noted(*args: Any, inner: str | None = None, **options: Any) -> Any:
        found.append(inner)
        return rewrite(*args, inner=inner, **options)

    monkeypatch.setattr(module, "rewrite", noted)
    monkeypatch.setattr(module, "_inner", lambda *_: lambda gm, example_inputs: gm.forward)
    return found


@pytest.mark.parametrize(
    ("asked", "inner"),
    [
        ({"mode": "reduce-overhead"}, "inductor"),
        ({"options": {"max_autotune": True}}, "inductor"),
        ({"options": {"inner": "inductor"}}, "inductor"),
        ({"options": {"inner": "none"}}, "none"),
        ({"options": {"inner": lambda gm, example_inputs: gm.forward}}, None),
    ],
)
def test_what_the_backend_knows(
    given: list[str | None], asked: dict[str, Any], inner: str | None
) -> None:
    torch.compile(swiglu, backend="fusewheel", **asked)(*pair(64))
    assert given == [inner]


def _in_a_checkpoint(gate: Tensor, up: Tensor) -> Tensor:
    result: Tensor = checkpoint(swiglu, gate, up, use_reentrant=False)
    return result


def _with_more_to_generate(gate: Tensor, up: Tensor) -> Tensor:
    return swiglu(gate, up) + torch.exp(gate + 1).cos()


@pytest.mark.parametrize(
    ("function", "elements", "training", "inner", "replaced"),
    [
        (swiglu, 64, False, [None], 1),
        (swiglu, 64, True, [None, "none"], 0),
        (swiglu, SMALL + 1, True, [None], 1),
        (_in_a_checkpoint, 64, True, [None, "none"], 0),
        (_with_more_to_generate, 64, False, [None, "inductor"], 0),
        (_with_more_to_generate, SMALL + 1, False, [None], 1),
    ],
)
def test_where_the_backend_chooses(
    given: list[str | None],
    function: Callable[..., Tensor],
    elements: int,
    training: bool,
    inner: list[str | None],
    replaced: int,
) -> None:
    """It rewrites, chooses, and rewrites again if something does not pay with what was chosen."""
    counters.clear()
    inputs = pair(elements, requires_grad=training)
    torch.testing.assert_close(
        torch.compile(function, backend="fusewheel")(*inputs), function(*inputs)
    )
    assert given == inner
    assert counters["fusewheel"]["silu_mul"] == replaced


def test_inductor_alone() -> None:
    from fusewheel.compiler.entry.inductor import Rewrite

    counters.clear()
    for elements in (SMALL, SMALL + 1):
        Rewrite(None)(captured(swiglu, *pair(elements)).graph)
    assert counters["fusewheel"] == {"silu_mul": 1}


def test_explain_tells_the_reason() -> None:
    report = fusewheel.explain(swiglu, *pair(64, requires_grad=True))
    assert [refusal.reason for refusal in report.refusals] == [
        "64 elements, forward and backward: PyTorch's operators are faster up to 4608 elements"
    ]
    assert report.graphs == 1 and report.count() == 0


def test_inductor_takes_a_graph_that_was_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Dynamo has noted of the inputs is still there."""
    backend = importlib.import_module("fusewheel.compiler.entry.dynamo")
    monkeypatch.setattr(backend, "_chosen", lambda gm, worthwhile: "inductor")
    inputs = pair(SMALL)
    call = torch.compile(swiglu, backend="fusewheel")
    torch.testing.assert_close(call(*inputs), swiglu(*inputs))

"""What the benchmarks have measured decides what pays, where it is known what runs the graph."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import fusewheel
import pytest
import torch
import torch.nn.functional as F
from fusewheel.compiler import rewrite
from fusewheel.compiler.cost import measured
from torch import Tensor
from torch.utils.checkpoint import checkpoint

# Elements, and how many times as fast as PyTorch's operations and as Inductor.
FORWARD = ((64, 0.5, 2.0), (256, 0.9, 0.96), (1024, 2.0, 0.5), (4096, 0.5, 0.5))
NO_LOSS: list[str] = []


@pytest.fixture(autouse=True)
def _measured(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {
        ("silu_mul", "float32", False): FORWARD,
        ("silu_mul", "float32", True): ((1024, 0.6, 0.7),),
    }
    monkeypatch.setattr(measured, "RATIOS", found)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def pair(elements: int, **options: Any) -> list[Tensor]:
    return [torch.randn(elements, **options) for _ in range(2)]


def refused(*inputs: Tensor, inner: str | None, **settings: Any) -> list[str]:
    """Why it is left alone."""
    graphs: list[torch.fx.GraphModule] = []

    def backend(gm: torch.fx.GraphModule, example_inputs: Any) -> Callable[..., Any]:
        graphs.append(gm)
        return gm.forward

    torch.compile(swiglu, backend=backend, **settings)(*inputs)
    report = rewrite(graphs[0], inner=inner)
    assert report.count("silu_mul") + len(report.refusals) == 1
    return [refusal.reason for refusal in report.refusals]


@pytest.mark.parametrize(
    ("inner", "elements", "ratio"),
    [
        ("none", 8, 0.5),  # of less than was measured: what a call costs
        ("none", 64, 0.5),
        ("none", 100, 0.9),
        ("none", 256, 0.9),
        ("none", 300, None),  # the larger of its neighbours wins
        ("none", 1024, None),
        ("none", 3000, None),
        ("none", 4096, 0.5),
        ("none", 5000, None),  # of more nothing is known
        ("inductor", 64, None),
        ("inductor", 256, None),  # slower, but not clearly
        ("inductor", 300, None),
        ("inductor", 1024, 0.5),
        ("inductor", 2000, 0.5),
        ("eager", 64, None),
        (None, 64, None),
    ],
)
def test_sizes(inner: str | None, elements: int, ratio: float | None) -> None:
    rival = {"none": "PyTorch's own", "inductor": "Inductor's code"}
    expected = f"{elements} elements in float32, forward: measured at {ratio} times "
    reasons = refused(*pair(elements), inner=inner)
    assert reasons == ([] if ratio is None else [expected + rival[str(inner)]])


def test_backward_has_figures_of_its_own() -> None:
    (reason,) = refused(*pair(9, requires_grad=True), inner="inductor")
    assert reason == (
        "9 elements in float32, forward and backward: measured at 0.7 times Inductor's code"
    )
    with torch.no_grad():
        assert refused(*pair(9, requires_grad=True), inner="inductor") == NO_LOSS


def test_what_was_not_measured_is_replaced() -> None:
    assert refused(*pair(64, dtype=torch.bfloat16), inner="none") == NO_LOSS
    assert refused(*pair(64, device="meta"), inner="none") == NO_LOSS
    # The next call may have more elements.
    assert refused(*pair(64), inner="none", dynamic=True) == NO_LOSS


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
    ("function", "elements", "inner", "replaced"),
    [
        (swiglu, 300, [None], 1),
        (swiglu, 64, [None, "none"], 0),
        (_in_a_checkpoint, 64, [None, "none"], 0),
        (_with_more_to_generate, 64, [None], 1),  # with Inductor it pays
        (_with_more_to_generate, 4096, [None, "inductor"], 0),
    ],
)
def test_where_the_backend_chooses(
    given: list[str | None],
    function: Callable[..., Tensor],
    elements: int,
    inner: list[str | None],
    replaced: int,
) -> None:
    """It rewrites, chooses, and rewrites again if something does not pay with what was chosen."""
    from torch._dynamo.utils import counters

    counters.clear()
    inputs = pair(elements)
    torch.testing.assert_close(
        torch.compile(function, backend="fusewheel")(*inputs), function(*inputs)
    )
    assert given == inner
    assert counters["fusewheel"]["silu_mul"] == replaced


def test_inductor_alone() -> None:
    from fusewheel.compiler.entry.inductor import Rewrite
    from torch._dynamo.utils import counters

    counters.clear()
    for elements in (256, 4096):
        graphs: list[torch.fx.GraphModule] = []
        torch._dynamo.reset()
        capture = lambda gm, inputs: graphs.append(gm) or gm.forward  # noqa: B023, E731
        torch.compile(swiglu, backend=capture)(*pair(elements))
        Rewrite(None)(graphs[0].graph)
    assert counters["fusewheel"] == {"silu_mul": 1}


def test_variants_have_figures_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {("gelu tanh", "float32", False): ((64, 0.5, 2.0),)}
    monkeypatch.setattr(measured, "RATIOS", found)
    for approximate, count in (("tanh", 0), ("none", 1)):
        function = functools.partial(F.gelu, approximate=approximate)
        torch._dynamo.reset()
        graphs: list[torch.fx.GraphModule] = []
        capture = lambda gm, inputs: graphs.append(gm) or gm.forward  # noqa: B023, E731
        torch.compile(lambda x: function(x), backend=capture)(torch.randn(64))  # noqa: B023
        assert rewrite(graphs[0], inner="none").count("gelu") == count


def test_explain_tells_the_reason() -> None:
    report = fusewheel.explain(swiglu, *pair(64))
    assert [refusal.reason for refusal in report.refusals] == [
        "64 elements in float32, forward: measured at 0.5 times PyTorch's own"
    ]
    assert report.graphs == 1 and report.count() == 0


def test_inductor_takes_a_graph_that_was_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Dynamo has noted of the inputs is still there."""
    backend = importlib.import_module("fusewheel.compiler.entry.dynamo")
    monkeypatch.setattr(backend, "_chosen", lambda gm: "inductor")
    inputs = pair(4096)
    call = torch.compile(swiglu, backend="fusewheel")
    torch.testing.assert_close(call(*inputs), swiglu(*inputs))

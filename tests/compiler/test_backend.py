"""The entry point, its options, and what happens when a pattern is broken."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fusewheel
import pytest
import torch
import torch.nn.functional as F
from copies import run_beside_torch
from fusewheel.compiler import backend, rewrite
from fusewheel.compiler.ir.pattern import Context, Match, Pattern
from fusewheel.compiler.patterns import all_patterns
from fusewheel.compiler.patterns.silu_mul import PATTERN
from oracle import assert_as_good_as_call
from torch._dynamo.exc import BackendCompilerFailed

assert fusewheel
Tensor = torch.Tensor


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """The smallest function with a match."""
    return F.silu(gate) * up


def _inputs() -> tuple[Tensor, Tensor]:
    return torch.randn(3, 8), torch.randn(3, 8)


def _captured() -> torch.fx.GraphModule:
    graphs = []

    def keep(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(gm)
        return gm

    torch.compile(swiglu, backend=keep)(*_inputs())
    (graph,) = graphs
    assert isinstance(graph, torch.fx.GraphModule)
    return graph


@pytest.mark.matrix
def test_found_without_an_import(tmp_path: Path) -> None:
    code = (
        "import torch, sys; import torch.nn.functional as F; "
        "seen = 'fusewheel' in sys.modules; "
        "f = torch.compile(lambda g, u: F.silu(g) * u, backend='fusewheel', "
        "options={'inner': 'eager'}); f(torch.ones(2), torch.ones(2)); "
        "assert not seen and 'fusewheel' in sys.modules"
    )
    run_beside_torch(code, tmp_path).check_returncode()


@pytest.mark.matrix
def test_import_is_light(tmp_path: Path) -> None:
    code = (
        "import sys, fusewheel, fusewheel.compiler; "
        "heavy = {'torch._dynamo', 'torch._inductor', 'transformers', "
        "'fusewheel.compiler.lower.engine'} & set(sys.modules); assert not heavy, heavy"
    )
    run_beside_torch(code, tmp_path).check_returncode()


@pytest.mark.parametrize("inner", ["eager", "aot_eager"])
def test_inner_by_name(inner: str) -> None:
    compiled = torch.compile(swiglu, backend="fusewheel", options={"inner": inner})
    inputs = _inputs()
    torch.testing.assert_close(compiled(*inputs), swiglu(*inputs))


@pytest.mark.matrix
def test_inner_callable() -> None:
    seen: list[Any] = []

    def inner(gm: torch.fx.GraphModule, inputs: Any, **kwargs: Any) -> Any:
        seen.append([node.target for node in gm.graph.nodes if node.op == "call_function"])
        seen.append(kwargs)
        return gm

    targets = [torch.ops.fusewheel.silu_mul.default]
    options = {"inner": inner, "own": 1}
    torch.compile(swiglu, backend="fusewheel", options=options)(*_inputs())
    assert seen == [targets, {"options": {"own": 1}}]
    backend(_captured(), _inputs(), mode="mine", options={"inner": inner})
    assert seen[2:] == [targets, {"mode": "mine"}]


def test_inductor_takes_options() -> None:
    """The options reach Inductor as configuration: its pass over the graph is called."""
    seen: list[str] = []

    def note(graph: torch.fx.Graph) -> None:
        seen.append(torch.compiler.config.cache_key_tag)

    options = {"post_grad_custom_pre_pass": note, "fx_graph_cache": False}
    compiled = torch.compile(swiglu, backend="fusewheel", options=options)
    inputs = _inputs()
    torch.testing.assert_close(compiled(*inputs), swiglu(*inputs))
    (tag,) = seen
    assert tag.endswith("fusewheel-" + fusewheel.__version__)


def test_errors_are_those_of_the_inner_compiler() -> None:
    with pytest.raises(BackendCompilerFailed, match="Unexpected optimization option nope"):
        torch.compile(swiglu, backend="fusewheel", options={"nope": 1})(*_inputs())
    with pytest.raises(BackendCompilerFailed, match="nowhere"):
        torch.compile(swiglu, backend="fusewheel", options={"inner": "nowhere"})(*_inputs())
    with pytest.raises(BackendCompilerFailed, match="Unrecognized mode=fastest"):
        torch.compile(swiglu, backend="fusewheel", mode="fastest")(*_inputs())


def _broken_match(context: Context, node: torch.fx.Node) -> Match | None:
    raise ZeroDivisionError


def _broken_build(context: Context, node: torch.fx.Node) -> Match | None:
    match = PATTERN.match(context, node)
    if match is None:
        return None

    def build(builder: Any) -> Any:
        builder.call(torch.ops.fusewheel.silu_mul.default, *match.inputs)
        raise ZeroDivisionError

    return dataclasses.replace(match, build=build)


@pytest.mark.parametrize("broken", [_broken_match, _broken_build])
def test_broken_pattern_leaves_the_graph(
    broken: Callable[[Context, torch.fx.Node], Match | None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    gm = _captured()
    before = str(gm.graph)
    pattern = dataclasses.replace(PATTERN, name="broken", match=broken)
    with pytest.raises(ZeroDivisionError):
        rewrite(gm, patterns=[pattern])
    monkeypatch.delenv("FUSEWHEEL_COMPILER_STRICT")
    with caplog.at_level(logging.WARNING, "fusewheel.compiler"):
        report = rewrite(gm, patterns=[pattern])
    assert "pattern broken failed" in caplog.text
    assert report.counts() == {}
    assert str(gm.graph) == before


def test_cost_rule() -> None:
    pattern = dataclasses.replace(PATTERN, cost=lambda match: "too small to gain anything")
    (refusal,) = rewrite(_captured(), patterns=[pattern]).refusals
    assert refusal.reason == "too small to gain anything"


def test_operator_that_is_not_loaded() -> None:
    pattern = dataclasses.replace(PATTERN, operator="fusewheel::not_there")
    (refusal,) = rewrite(_captured(), patterns=[pattern]).refusals
    assert refusal.reason == "operator fusewheel::not_there is not loaded"


def test_wrong_metadata_is_refused() -> None:
    """An operator whose result differs from what it replaces is taken back."""

    def match(context: Context, node: torch.fx.Node) -> Match | None:
        found = PATTERN.match(context, node)
        if found is None:
            return None
        return dataclasses.replace(
            found, build=lambda b: [b.call(torch.ops.aten.sum.dim_IntList, found.inputs[0], [0])]
        )

    gm = _captured()
    before = str(gm.graph)
    (refusal,) = rewrite(gm, patterns=[dataclasses.replace(PATTERN, match=match)]).refusals
    assert refusal.reason == "the shape of the result would differ"
    assert str(gm.graph) == before


def test_implicit_cast_is_refused() -> None:
    """CUDA's autocast runs some operations in float32 and leaves no trace of it in the graph."""
    gm = _captured()
    for node in gm.graph.nodes:
        if node.op != "output":
            dtype = torch.bfloat16 if node.op == "placeholder" else torch.float32
            node.meta["example_value"] = node.meta["example_value"].to(dtype)
    (refusal,) = rewrite(gm).refusals
    assert "autocast" in refusal.reason


@pytest.mark.matrix
def test_discovery() -> None:
    patterns = all_patterns()
    assert {pattern.name for pattern in patterns} >= {"rms_norm", "rope", "silu_mul"}
    assert all(isinstance(pattern, Pattern) for pattern in patterns)


def test_replacements_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "fusewheel.compiler"):
        rewrite(_captured())
    assert "silu_mul replaced by fusewheel::silu_mul" in caplog.text


@pytest.mark.matrix
def test_new_nodes_have_metadata() -> None:
    gm = _captured()
    rewrite(gm)
    (node,) = [n for n in gm.graph.nodes if n.target is torch.ops.fusewheel.silu_mul.default]
    assert node.meta["example_value"].shape == (3, 8)
    assert "F.silu(gate) * up" in node.meta["stack_trace"]


@pytest.mark.matrix
def test_exported_program() -> None:
    """The matcher reads ATen too, where export puts assertions behind casts."""

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(8).bfloat16())

        def forward(self, x: Tensor) -> Tensor:
            h = x if x.dtype == torch.float64 else x.to(torch.float32)
            h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
            h = self.weight * h.to(x.dtype)
            return F.silu(h) * x

    block, x = Block(), torch.randn(3, 8).bfloat16()
    program = torch.export.export(block, (x,))
    report = rewrite(program.graph_module)
    assert report.counts() == {"rms_norm": 1, "silu_mul": 1}, report
    assert_as_good_as_call(program.module()(x), block, x)

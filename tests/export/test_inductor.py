"""`fusewheel.inductor`: the rewrites inside of Inductor as it is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import fusewheel
import pytest
import tiny_decoder
import torch
import torch._inductor.config as config
import torch.nn.functional as F
from copies import run_beside_torch
from fresh import loss
from fusewheel.compiler.cost import rules
from fusewheel.compiler.entry import inductor as inductor_pass
from fusewheel.compiler.entry.inductor import Rewrite
from fusewheel.compiler.match.registry import known_patterns
from nightly import NIGHTLY
from oracle import assert_program_as_good_as_eager
from torch import Tensor
from torch._dynamo.utils import counters
from torch._inductor.compile_fx import _recursive_pre_grad_passes
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.fx import Graph, GraphModule


class Counting(CustomGraphPass):
    """A pass of the user's, which notes what it sees."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __call__(self, graph: Graph) -> None:
        self.seen.append(str(graph))

    def uuid(self) -> Any:
        return "counting"


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def captured(function: Any, *inputs: Tensor) -> GraphModule:
    """The graph Dynamo hands to Inductor."""
    graphs = []

    def keep(gm: GraphModule, inputs: Any) -> Any:
        graphs.append(gm)
        return gm

    torch.compile(function, backend=keep)(*inputs)
    (graph,) = graphs
    return graph


def called(module: GraphModule) -> set[str]:
    """Names of the operators that a graph and its bodies call."""
    modules = [m for m in module.modules() if isinstance(m, GraphModule)]
    nodes = [node for m in modules for node in m.graph.nodes]
    return {n.target._schema.name for n in nodes if hasattr(n.target, "_schema")}


@pytest.mark.matrix
def test_training_with_inductor() -> None:
    """Values and every gradient; only what is compiled meanwhile is rewritten."""
    model, exact, x = tiny_decoder.decoder(), tiny_decoder.decoder().double(), tiny_decoder.tokens()
    counters.clear()
    results = []
    with fusewheel.inductor.enabled():
        for run in (torch.compile(model), model, exact):
            parameters = list((model if run is not exact else exact).parameters())
            logits = run(x)
            gradients = torch.autograd.grad(logits.square().sum(), parameters)
            results.append((logits, torch.cat([g.flatten() for g in gradients])))
    for got, eager, wide in zip(*results, strict=True):
        assert_program_as_good_as_eager(got, eager, wide)
    # Grouped attention does not pay where it is differentiated, and a loss is not there.
    counts = {name: n for name, n in tiny_decoder.COUNTS.items() if name != "grouped_attention"}
    assert counters["fusewheel"] == counts
    assert config.pre_grad_custom_pass is None


def replaced_and_cached(**settings: Any) -> tuple[int, int]:
    """Compiles a function anew; how often it was rewritten, and how often found in the cache."""
    torch.compiler.reset()
    counters.clear()
    gate, up = torch.randn(512, 2048), torch.randn(512, 2048)  # fewer do not pay with Inductor
    torch.testing.assert_close(torch.compile(swiglu, **settings)(gate, up), swiglu(gate, up))
    return counters["fusewheel"]["silu_mul"], counters["inductor"]["fxgraph_cache_hit"]


CACHED = """
import test_inductor as test
with test.torch.no_grad():
    # This backend rewrites before it asks Inductor.
    settings = dict(backend="fusewheel", options=dict(inner="inductor"))
    assert test.replaced_and_cached(**settings) == (1, {cached}), test.counters
    with test.fusewheel.inductor.enabled():
        assert test.replaced_and_cached() == (1 - {cached}, {cached}), test.counters
"""


@NIGHTLY
def test_caches(tmp_path: Path) -> None:
    """A second process takes what the first compiled."""
    tests = Path(__file__).parent
    environment = os.environ | {
        "PYTHONPATH": f"{tests}{os.pathsep}{tests.parent}",
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }
    for cached in (0, 1):
        command = [sys.executable, "-W", "ignore", "-c", CACHED.format(cached=cached)]
        subprocess.run(command, env=environment, check=True, timeout=600)


def test_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    """It changes with whatever changes the graph, and with nothing else."""
    plain = Rewrite(None).uuid()
    assert plain == Rewrite(None).uuid() == Rewrite([]).uuid()
    assert Rewrite(Counting()).uuid() == Rewrite([Counting()]).uuid() != plain
    # A pass nobody can identify keeps the graph out of the caches.
    assert Rewrite(lambda graph: None).uuid() is None
    monkeypatch.setattr(inductor_pass, "known_patterns", lambda: known_patterns()[1:])
    assert Rewrite(None).uuid() != plain
    monkeypatch.undo()
    with fusewheel.compiler.disable("rope"):
        assert Rewrite(None).uuid() != plain
    monkeypatch.setenv("FUSEWHEEL_COMPILER_MAKER", "another")
    assert Rewrite(None).uuid() != plain
    inductor_pass._identity.cache_clear()


@pytest.mark.matrix
def test_a_pass_of_the_user_goes_first() -> None:
    own = Counting()
    with config.patch(pre_grad_custom_pass=own):
        fusewheel.inductor.enable()
        fusewheel.inductor.enable()
        assert config.pre_grad_custom_pass.previous is own
        gm = captured(swiglu, torch.randn(3, 8), torch.randn(3, 8))
        _recursive_pre_grad_passes(gm, ())
        assert called(gm) == {"fusewheel::silu_mul"}
        assert len(own.seen) == 1 and "fusewheel" not in own.seen[0]
        fusewheel.inductor.disable()
        assert config.pre_grad_custom_pass is own
        # One that was set since stays.
        fusewheel.inductor.enable()
        config.pre_grad_custom_pass = other = Counting()
        fusewheel.inductor.disable()
        assert config.pre_grad_custom_pass is other


@pytest.mark.matrix
def test_blocks_nest() -> None:
    with fusewheel.inductor.enabled():
        inside = config.pre_grad_custom_pass
        with fusewheel.inductor.enabled():
            assert config.pre_grad_custom_pass is inside
        assert isinstance(config.pre_grad_custom_pass, Rewrite)
    assert config.pre_grad_custom_pass is None
    fusewheel.inductor.disable()
    assert config.pre_grad_custom_pass is None


def test_bodies_are_rewritten_only_where_they_run_as_written() -> None:
    """Inductor calls its passes on every body, that of a scan or of a score function too."""
    from torch.nn.attention.flex_attention import flex_attention

    def f(x: Tensor, weight: Tensor, q: Tensor) -> Any:
        def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return F.silu(s) * s

        y = torch.cond(x.sum() > 0, lambda x: F.silu(x) * x, lambda x: x + 1, (x,))
        return y, flex_attention(q, q, q, score_mod=score)

    gm = captured(f, torch.randn(3, 8), torch.randn(8), torch.randn(1, 1, 128, 16))
    counters.clear()
    with fusewheel.inductor.enabled():
        _recursive_pre_grad_passes(gm, ())
    assert counters["fusewheel"] == {"silu_mul": 1}
    bodies = {name: called(m) for name, m in gm.named_children() if isinstance(m, GraphModule)}
    fused = [name for name, operators in bodies.items() if "fusewheel::silu_mul" in operators]
    assert len(fused) == 1 and "cond" in fused[0], bodies


def test_cost_rules_are_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gelu that is slower than Inductor's is left to it."""
    monkeypatch.setattr(rules, "loss", loss)
    gm = captured(F.gelu, torch.randn(3, 8))
    with fusewheel.inductor.enabled():
        _recursive_pre_grad_passes(gm, ())
    assert not called(gm)


@pytest.mark.matrix
def test_autocast_and_modes() -> None:
    """The pass sees the modes that the model runs under."""
    model, x = tiny_decoder.decoder(), tiny_decoder.tokens()
    counters.clear()
    with fusewheel.inductor.enabled(), torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        gm = captured(model, x)
        _recursive_pre_grad_passes(gm, ())
    names = called(gm)
    assert {"fusewheel::rms_norm", "fusewheel::silu_mul"} <= names, names


def test_import_is_light(tmp_path: Path) -> None:
    code = (
        "import sys, fusewheel, fusewheel.inductor, fusewheel.compiler; "
        "heavy = {'torch._dynamo', 'torch._inductor'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    run_beside_torch(code, tmp_path).check_returncode()

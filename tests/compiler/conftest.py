"""Shared checks: a function computes the same with the backend as without it."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from typing import Any

import fusewheel
import pytest
import torch
from fresh import fresh
from fusewheel.compiler import Report
from fusewheel.compiler.entry.dynamo import compile_graph
from fusewheel.compiler.match.registry import known_patterns
from fusewheel.compiler.match.report import Recorder
from nightly import NIGHTLY
from torch.testing import assert_close
from training import assert_step, run

assert fusewheel and fresh


# Writes, layouts and autograd are what AOTAutograd does in its own way.
BY_AOTAUTOGRAD = ("autograd", "engine", "executor", "hazards", "memory", "regimes", "training")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """What runs the rewritten graphs of a test that does not say it.

    AOTAutograd takes as long as all the rest: a change hands whole models to it, one for each
    pattern, the night everything.
    """
    if "compare" in metafunc.fixturenames:
        by_night = pytest.param("aot_eager", marks=NIGHTLY)
        always = metafunc.module.__name__.rpartition("test_")[2] in BY_AOTAUTOGRAD
        metafunc.parametrize(
            "compare", ["aot_eager"] if always else ["eager", by_night], indirect=True
        )


class Compare:
    """Runs a function eagerly and compiled, compares everything and returns the report."""

    def __init__(self, inner: str) -> None:
        self.inner = inner
        self.graphs: list[torch.fx.GraphModule] = []

    def compile(
        self, function: Callable[..., Any], inner: Any = None, **settings: Any
    ) -> tuple[Callable[..., Any], Recorder]:
        """Compile with the rewriting backend; what it does is noted in the recorder."""
        recorder, inner = Recorder(), inner or self.inner

        def backend(gm: torch.fx.GraphModule, inputs: Any) -> Any:
            compiled = compile_graph(gm, inputs, recorder, inner)
            self.graphs.append(gm)
            return compiled

        return torch.compile(function, backend=backend, **settings), recorder

    def __call__(
        self,
        function: Callable[..., Any],
        *inputs: Any,
        inner: Any = None,
        exact: Callable[..., Any] | None = None,
        whole: bool = False,
        **settings: Any,
    ) -> Report:
        """The oracle judges outputs and gradients; a module is copied for the exact result.

        `exact` and `whole` as in `assert_step`.
        """
        compiled, recorder = self.compile(function, inner, **settings)
        if exact is None and isinstance(function, torch.nn.Module):
            exact = copy.deepcopy(function).double()
        assert_step(compiled, function, *inputs, exact=exact, whole=whole)
        return recorder.report()

    def bits(
        self,
        function: Callable[..., Any],
        *inputs: Any,
        inner: Any = None,
        **settings: Any,
    ) -> Report:
        """All values are equal to eager's: what runs is what eager runs."""
        compiled, recorder = self.compile(function, inner, **settings)
        expected, actual = run(function, inputs), run(compiled, inputs)
        assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
        assert required(actual) == required(expected)
        return recorder.report()

    def targets(self) -> list[Any]:
        """The operators called in the graphs that were handed over, bodies included."""
        found, todo = [], list(self.graphs)
        for gm in todo:
            todo += [m for m in gm.children() if isinstance(m, torch.fx.GraphModule)]
            found += [node.target for node in gm.graph.nodes if node.op == "call_function"]
        return found


@pytest.fixture
def compare(request: pytest.FixtureRequest) -> Compare:
    """See `Compare`."""
    return Compare(request.param)


@pytest.fixture
def calls_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of PyTorch's attention stay such calls: all patterns run but `attention`."""
    rest = [pattern for pattern in known_patterns() if pattern.name != "attention"]
    module = importlib.import_module("fusewheel.compiler.match.rewrite")
    monkeypatch.setattr(module, "known_patterns", lambda: rest)


def required(results: dict[str, Any]) -> list[str]:
    """The names of the tensors that require a gradient."""
    return [n for n, r in results.items() if isinstance(r, torch.Tensor) and r.requires_grad]

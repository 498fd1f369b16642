"""Graphs whose parts became programs, beside the same graphs without programs."""

from __future__ import annotations

from typing import Any

import torch
from fusewheel.compiler.entry.dynamo import compile_graph
from fusewheel.compiler.match.report import Recorder
from torch import Tensor


class Engine:
    """A backend that keeps what it was given, after it was lowered."""

    def __init__(self, inner: str | None = "engine") -> None:
        self.inner = inner
        self.graphs: list[torch.fx.GraphModule] = []

    def __call__(self, gm: torch.fx.GraphModule, inputs: Any) -> Any:
        self.graphs.append(gm)
        return compile_graph(gm, inputs, Recorder(), self.inner)

    def programs(self) -> list[int]:
        """How many programs each graph has."""
        run = torch.ops.fusewheel.run.default
        return [len(gm.graph.find_nodes(op="call_function", target=run)) for gm in self.graphs]

    def calls(self) -> list[Any]:
        """What is left of the last graph beside programs and their results."""
        programs = torch.ops.fusewheel.run.default
        return [
            node.target
            for node in self.graphs[-1].graph.nodes
            if node.op in ("call_function", "call_method")
            and node.target is not programs
            and getattr((*node.args, None)[0], "target", None) is not programs
        ]


def compare(function: Any, *inputs: Any, dynamic: bool | None = None) -> Engine:
    """Runs a function in both ways; every bit of what comes out is the same."""
    engine = Engine()
    with torch.no_grad():
        torch.compiler.reset()
        expected = torch.compile(function, backend=Engine("none"), dynamic=dynamic)(*inputs)
        torch.compiler.reset()
        got = torch.compile(function, backend=engine, dynamic=dynamic)(*inputs)
    same(got, expected)
    return engine


def same(got: Any, expected: Any) -> None:
    if isinstance(expected, Tensor):
        assert (got.dtype, got.stride()) == (expected.dtype, expected.stride())
        torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)
    elif isinstance(expected, (tuple, list)):
        for a, b in zip(got, expected, strict=True):
            same(a, b)
    else:
        assert got == expected

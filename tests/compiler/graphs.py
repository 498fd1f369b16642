"""Small graphs with example values, as Dynamo hands them over, without compiling anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Interpreter, Node, Tracer
from torch.overrides import TorchFunctionMode

FACTORIES = {torch.arange, torch.ones, torch.zeros, torch.full, torch.tensor}


class _Calls(TorchFunctionMode):
    """Makes nodes of calls that make tensors of nothing but numbers."""

    def __init__(self, tracer: Tracer) -> None:
        super().__init__()
        self.tracer = tracer

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in FACTORIES:
            return self.tracer.create_proxy("call_function", func, args, kwargs or {})
        return func(*args, **(kwargs or {}))


class _Noting(Interpreter):
    """Notes on every node what it computes."""

    def __init__(self, module: GraphModule, key: str) -> None:
        super().__init__(module)
        self.key = key

    def run_node(self, n: Node) -> Any:
        result = super().run_node(n)
        n.meta[self.key] = result
        return result


def captured(function: Callable[..., Any], *inputs: Any, key: str = "example_value") -> GraphModule:
    """The graph of a function of tensors, with the values for these inputs."""
    tracer = Tracer()
    with _Calls(tracer):
        module = GraphModule(torch.nn.Module(), tracer.trace(function))
    _Noting(module, key).run(*inputs)
    return module


def nodes_of(function: Callable[..., Any], *inputs: Any, key: str = "example_value") -> list[Node]:
    """What a function returns, and its arguments, as nodes."""
    *nodes, output = captured(function, *inputs, key=key).graph.nodes
    result = output.args[0]
    results = list(result) if isinstance(result, (tuple, list)) else [result]
    return [*results, *(node for node in nodes if node.op == "placeholder")]


def placeholder(value: torch.Tensor | None) -> Node:
    """An input of a graph; None for one of which nothing is known."""
    node = Graph().placeholder("x")
    if value is not None:
        node.meta["example_value"] = value
    return node

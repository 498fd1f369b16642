"""TorchScript's graphs and passes. Their interface is frozen: PyTorch no longer develops them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fusewheel._torch.find import find

_PURPOSE = "rewrite TorchScript"

if TYPE_CHECKING:
    from torch._C import (
        CompilationUnit,
        Graph,
        ListType,
        Node,
        ScriptModule,
        TensorType,
        Value,
    )
    from torch.jit._script import RecursiveScriptModule
else:
    Graph = find("torch._C.Graph", _PURPOSE)
    Node = find("torch._C.Node", _PURPOSE)
    Value = find("torch._C.Value", _PURPOSE)
    ScriptModule = find("torch._C.ScriptModule", _PURPOSE)
    TensorType = find("torch._C.TensorType", _PURPOSE)
    ListType = find("torch._C.ListType", _PURPOSE)
    CompilationUnit = find("torch._C.CompilationUnit", _PURPOSE)
    RecursiveScriptModule = find(
        "torch.jit._script.RecursiveScriptModule", _PURPOSE, torch.jit.ScriptModule
    )

__all__ = [
    "CompilationUnit",
    "Graph",
    "ListType",
    "Node",
    "RecursiveScriptModule",
    "ScriptModule",
    "TensorType",
    "Value",
    "builtin_named",
    "forward_of",
    "freeze_again",
    "inline",
    "is_tracing",
    "of_its_own_type",
    "parsed",
    "register_shape_function",
    "simplify",
    "static_module",
    "wrapped",
]

_inline = find("torch._C._jit_pass_inline", _PURPOSE)
# In this order; the last three clear up what the others leave behind.
_SIMPLIFY = tuple(
    find(f"torch._C._jit_pass_{name}", _PURPOSE, lambda graph: None)
    for name in (
        "constant_propagation",
        "remove_mutation",
        "peephole",
        "cse",
        "constant_pooling",
        "dce",
    )
)
_freeze = find("torch._C._freeze_module", _PURPOSE)
_wrap = find("torch.jit._recursive.wrap_cpp_module", _PURPOSE)
_create = find("torch.jit._recursive.create_script_module", _PURPOSE)
_static = find("torch._C._jit_to_static_module", "run TorchScript by PyTorch's static runtime")
_register_shapes = find(
    "torch._C._jit_register_shape_compute_graph_for_node", "tell TorchScript of shapes"
)
_parse = find("torch._C.parse_ir", "tell TorchScript of shapes")
_find_builtin = find("torch.jit._builtins._find_builtin", _PURPOSE)
_tracing_state = find("torch._C._get_tracing_state", "see whether a tracer looks on", lambda: None)


def inline(graph: Graph) -> None:
    """Put the bodies of functions and methods in the place of their calls."""
    _inline(graph)


def simplify(graph: Graph) -> None:
    """Inline, fold constants, and turn writes in place into their pure forms where that is safe."""
    _inline(graph)
    for step in _SIMPLIFY:
        step(graph)


def freeze_again(module: Any) -> Any:
    """A frozen module, once more; `torch.jit.freeze` takes only one that is not."""
    return wrapped(_freeze(module._c))


def wrapped(module: Any) -> Any:
    """The Python module of one of C++."""
    return _wrap(module)


def of_its_own_type(module: Any) -> Any:
    """A module without methods as TorchScript, whose type no other module shares."""
    return _create(module, lambda _: [], share_types=False)


def forward_of(module: Any) -> Any:
    """The method ``forward`` of a module."""
    return module._c._get_method("forward")


def static_module(graph: Graph) -> Any:
    """A graph in PyTorch's static runtime.

    Raises:
        RuntimeError: the runtime lacks what the graph needs.
    """
    return _static(graph)


def register_shape_function(node: Node, function: Graph) -> None:
    """Have TorchScript infer shapes through an operator, of which `node` is a call."""
    _register_shapes(node, function)


def parsed(text: str) -> Graph:
    """A graph from its text."""
    graph: Graph = _parse(text)
    return graph


def builtin_named(function: Any) -> str | None:
    """The qualified name of the operator behind a Python function; None if there is none."""
    name: str | None = _find_builtin(function)
    return name


def is_tracing() -> bool:
    """Whether `torch.jit.trace` looks on."""
    return bool(_tracing_state())

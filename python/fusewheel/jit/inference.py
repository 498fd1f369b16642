"""TorchScript modules that skip autograd when no input can require a gradient.

The kernels on the `Autograd` key are Python. Even if they record nothing, they take longer than a
small operator.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from fusewheel._torch.autograd import below_autograd as below_autograd_block
from fusewheel._torch.autograd import in_forward_mode
from fusewheel._torch.dispatcher import is_watched
from fusewheel._torch.functorch import in_transform
from fusewheel._torch.jit import Graph, Node, RecursiveScriptModule, Value, is_tracing
from fusewheel._torch.modules import has_global_hooks, has_hooks
from fusewheel.jit.graph.nodes import nodes_in, overload_of
from fusewheel.jit.graph.passes import TorchScript

_NUMBERS = (bool, int, float, str, type(None))
_PLAIN = (Tensor, torch.nn.Parameter)


class InferenceModule(RecursiveScriptModule):
    """A module without trainable parameters whose results share no memory with its inputs.

    It saves as an ordinary TorchScript module, and is one as a part of another module.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the module; below autograd if no gradient can be asked for."""
        if (
            torch.is_inference_mode_enabled()  # it is below autograd already
            or is_observed(self)
            or _needs_autograd((*args, *kwargs.values()) if kwargs else args)
        ):
            return torch.nn.Module.__call__(self, *args, **kwargs)
        with below_autograd_block():
            return self.forward(*args, **kwargs)


def below_autograd(module: TorchScript) -> TorchScript:
    """Makes a module skip autograd in each call whose result cannot require a gradient.

    Args:
        module: a frozen module that does not write to its inputs.
    """
    graph = module.inlined_graph
    # Attributes that a frozen graph still reads may require a gradient.
    if not any(True for _ in _state(graph)) and can_run_below(graph):
        object.__setattr__(module, "__class__", InferenceModule)
    return module


def can_run_below(graph: Graph) -> bool:
    """Whether a graph computes the same below autograd if no input requires a gradient.

    It does not if a result may be a view of an input, which autograd has to know; if it calls
    Python or another module, which may use any tensor; or if the graph itself asks for gradients.

    Args:
        graph: the graph, with all calls inlined.
    """
    return not _returns_inputs(graph) and not any(map(_may_record, nodes_in(graph)))


_UNKNOWN = ("prim::PythonOp", "prim::CallMethod", "prim::CallFunction")
_GRADIENTS = ("aten::requires_grad_", "aten::grad", "aten::backward")


def _may_record(node: Node) -> bool:
    if node.kind() in (*_UNKNOWN, *_GRADIENTS):
        return True
    overload = overload_of(node)
    if overload is None:
        return False
    pairs = zip(overload._schema.arguments, node.inputs(), strict=True)
    asked = [value.toIValue() for argument, value in pairs if argument.name == "requires_grad"]
    return any(asked)


def is_observed(module: Any) -> bool:
    """Whether hooks, tracers or transforms observe how a module runs."""
    return bool(
        is_tracing()
        or has_hooks(module)
        or has_global_hooks()
        or torch.compiler.is_compiling()
        or is_watched()
        or in_transform()
    )


def _needs_autograd(arguments: Iterable[Any]) -> bool:
    """Whether a derivative may be asked for; True if that is not certain."""
    if in_forward_mode():
        return True
    for argument in arguments:
        if type(argument) in _PLAIN:
            if argument.requires_grad:
                return True
        elif not isinstance(argument, _NUMBERS):
            return True
    return False


def _state(graph: Graph) -> Iterator[Value]:
    """The attributes that a graph reads or writes; submodules do not count."""
    for node in nodes_in(graph):
        if node.kind() == "prim::SetAttr":
            yield node.inputsAt(1)
        elif node.kind() == "prim::GetAttr":
            users = [use.user.kind() for use in node.output().uses()]
            if any(user not in ("prim::GetAttr", "prim::SetAttr") for user in users):
                yield node.output()


def _returns_inputs(graph: Graph) -> bool:
    """Whether a result may share memory with an input or an attribute of the module."""
    aliases: Any = graph.alias_db()
    owned = [*list(graph.inputs())[1:], *_state(graph)]
    return any(aliases.may_contain_alias(i, o) for i in owned for o in graph.outputs())

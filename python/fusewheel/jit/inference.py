"""TorchScript modules that run below autograd, where nobody can ask for a derivative.

On the `Autograd` key the kernels are Python, and take longer to find nothing to record than small
operators take.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.modules import module as nn_module

from .passes import TorchScript

_NUMBERS = (bool, int, float, str, type(None))
_PLAIN = (Tensor, torch.nn.Parameter)


class InferenceModule(torch.jit._script.RecursiveScriptModule):
    """A module without trainable parameters whose results share no memory with its inputs.

    It saves as what it is otherwise, and as a part of another TorchScript module it is that.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As any module, below autograd if no gradient is asked for."""
        if (
            torch.is_inference_mode_enabled()  # it is below autograd already
            or is_observed(self)
            or _needs_autograd((*args, *kwargs.values()) if kwargs else args)
        ):
            return torch.nn.Module.__call__(self, *args, **kwargs)
        with torch._C._AutoDispatchBelowAutograd():
            return self.forward(*args, **kwargs)


def below_autograd(module: TorchScript) -> TorchScript:
    """The module, which runs below autograd from now on where that makes no difference.

    Args:
        module: a frozen one that writes to none of its inputs.
    """
    # Of a result that is a view of an input autograd has to know.
    if not _returns_inputs(module):
        object.__setattr__(module, "__class__", InferenceModule)
    return module


def is_observed(module: Any) -> bool:
    """Whether somebody looks at how a module runs: hooks, tracers, transforms."""
    return bool(
        torch._C._get_tracing_state()
        or module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or nn_module._has_any_global_hook()
        or torch.compiler.is_compiling()
        or torch._C._len_torch_function_stack()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._functorch.peek_interpreter_stack() is not None
    )


def _needs_autograd(arguments: Iterable[Any]) -> bool:
    """Whether derivatives may be asked for, or that is not plain to see."""
    if forward_ad._current_level >= 0:
        return True
    for argument in arguments:
        if type(argument) in _PLAIN:
            if argument.requires_grad:
                return True
        elif not isinstance(argument, _NUMBERS):
            return True
    return False


def _returns_inputs(module: TorchScript) -> bool:
    """Whether a result may lie in the memory of an input."""
    graph = module.inlined_graph
    aliases: Any = graph.alias_db()
    inputs = list(graph.inputs())[1:]
    return any(aliases.may_contain_alias(i, o) for i in inputs for o in graph.outputs())

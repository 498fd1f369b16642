"""Joins two graphs: the fused one runs if its assumptions hold, otherwise the original one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from fusewheel._torch import jit
from fusewheel.jit.graph.passes import TorchScript, held
from fusewheel.jit.inference import below_autograd
from fusewheel.jit.inputs import Assumptions


def guarded(
    fused: TorchScript,
    original: TorchScript,
    arguments: Sequence[torch.Argument],
    assumptions: Assumptions,
) -> TorchScript:
    """A module that runs `fused` if the assumptions hold for its inputs, otherwise `original`.

    Args:
        fused: the module with fused operators.
        original: the module without them.
        arguments: the arguments of both, from their schema.
        assumptions: the conditions on the inputs of `fused`.
    """
    holder = torch.nn.Module()
    holder.fused, holder.original = held(fused._c), held(original._c)
    module: TorchScript = torch.jit.script(holder.eval())
    given = ", ".join(argument.name for argument in arguments)
    module.define(
        definition("forward", ["self"], arguments, assumptions, f"self.fused({given})")
        + f"    return self.original({given})\n"
    )
    return below_autograd(module)


def guarded_function(
    fused: jit.Graph,
    original: jit.Graph,
    arguments: Sequence[torch.Argument],
    assumptions: Assumptions,
) -> Callable[..., Any]:
    """Like `guarded`, but a function made of two graphs; it takes all arguments by position.

    Args:
        fused: the graph with fused operators; it has no module among its inputs.
        original: the graph without them.
        arguments: the arguments of both, from their schema.
        assumptions: the conditions on the inputs of `fused`.
    """
    # One unit owns all three functions, because a call does not keep its callee alive.
    unit: Any = jit.CompilationUnit()
    names = {
        "torch": torch,
        "fused": unit.create_function("fused", fused),
        "original": unit.create_function("original", original),
    }
    given = ", ".join(argument.name for argument in arguments)
    source = (
        definition("forward", [], arguments, assumptions, f"fused({given})")
        + f"    return original({given})\n"
    )
    unit.define(source, names.get)
    function: Callable[..., Any] = unit.forward
    return function


def definition(
    name: str,
    parameters: list[str],
    arguments: Sequence[torch.Argument],
    assumptions: Assumptions,
    result: str,
) -> str:
    """A function that returns `result` if the assumptions hold and autocast is off.

    In TorchScript, autocast does not cast for our operators. A graph that calls
    `torch.is_autocast_cpu_enabled()` ends the process when autocast is on, so the function looks at
    the dtype of a product.
    """
    # Not in a variable, because an input may have any name.
    one = f"torch.empty([1, 1], dtype=torch.float32, device={assumptions.device})"
    signature = ", ".join([*parameters, *map(_parameter, arguments)])
    return (
        f"def {name}({signature}):\n"
        f"    if {assumptions.source()}:\n"
        f"        if torch.mm({one}, {one}).dtype == torch.float32:\n"
        f"            return {result}\n"
    )


def _parameter(argument: torch.Argument) -> str:
    text = f"{argument.name}: {argument.type.annotation_str}"
    return f"{text}={_literal(argument.default_value)}" if argument.has_default_value() else text


def _literal(value: object) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return repr(value)

"""One module of two: fused where its assumptions hold, the original everywhere else."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .inference import below_autograd
from .inputs import Assumptions
from .passes import TorchScript, held


def guarded(
    fused: TorchScript,
    original: TorchScript,
    arguments: Sequence[torch.Argument],
    assumptions: Assumptions,
) -> TorchScript:
    """A module that runs `fused` where the assumptions hold.

    Args:
        fused: runs on inputs that satisfy them.
        original: runs on all others.
        arguments: of both, as their schema has them.
        assumptions: what inputs must be like.
    """
    holder = torch.nn.Module()
    holder.fused, holder.original = held(fused._c), held(original._c)
    module: TorchScript = torch.jit.script(holder.eval())
    given = ", ".join(argument.name for argument in arguments)
    module.define(
        _definition("forward", ["self"], arguments, assumptions, f"self.fused({given})")
        + f"    return self.original({given})\n"
    )
    return below_autograd(module)


def guarded_function(
    fused: torch._C.Graph,
    original: torch._C.Graph,
    arguments: Sequence[torch.Argument],
    assumptions: Assumptions,
) -> Callable[..., Any]:
    """As `guarded`, a function of two graphs; it takes every argument by its position.

    Args:
        fused: runs on inputs that satisfy the assumptions; it has no module for an input.
        original: runs on all others.
        arguments: of both, as the schema has them.
        assumptions: what inputs must be like.
    """
    # One unit for all three: a call does not keep the function alive that it calls.
    unit: Any = torch._C.CompilationUnit()
    names = {
        "torch": torch,
        "fused": unit.create_function("fused", fused),
        "original": unit.create_function("original", original),
    }
    given = ", ".join(argument.name for argument in arguments)
    source = (
        _definition("forward", [], arguments, assumptions, f"fused({given})")
        + f"    return original({given})\n"
    )
    unit.define(source, names.get)
    function: Callable[..., Any] = unit.forward
    return function


def _definition(
    name: str,
    parameters: list[str],
    arguments: Sequence[torch.Argument],
    assumptions: Assumptions,
    result: str,
) -> str:
    """A function that returns `result` where the assumptions hold and autocast is off.

    Autocast casts nothing for our operators. A graph that asks `torch.is_autocast_cpu_enabled()`
    ends the process when it is; what dtype a product has tells as well.
    """
    signature = ", ".join([*parameters, *map(_parameter, arguments)])
    return (
        f"def {name}({signature}):\n"
        f"    if {assumptions.source()}:\n"
        f"        probe = torch.empty([1, 1], dtype=torch.float32, device={assumptions.device})\n"
        f"        if torch.mm(probe, probe).dtype == torch.float32:\n"
        f"            return {result}\n"
    )


def _parameter(argument: torch.Argument) -> str:
    text = f"{argument.name}: {argument.type.annotation_str}"
    return f"{text}={_literal(argument.default_value)}" if argument.has_default_value() else text


def _literal(value: object) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return repr(value)

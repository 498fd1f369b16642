"""One module of two: fused where its assumptions hold, the original everywhere else."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from .passes import TorchScript, held


def guarded(
    fused: TorchScript,
    original: TorchScript,
    arguments: Sequence[torch.Argument],
    condition: str,
    device: str,
) -> TorchScript:
    """A module that runs `fused` where `condition` holds and autocast is off.

    Autocast casts nothing for our operators. A graph that asks `torch.is_autocast_cpu_enabled()`
    ends the process when it is; what dtype a product has tells as well.

    Args:
        fused: runs on inputs that satisfy the condition.
        original: runs on all others.
        arguments: of both, as their schema has them.
        condition: an expression of TorchScript over them.
        device: another one, of the device for which autocast must be off.
    """
    holder = torch.nn.Module()
    holder.fused, holder.original = held(fused._c), held(original._c)
    module: TorchScript = torch.jit.script(holder.eval())
    signature = ", ".join(["self", *map(_parameter, arguments)])
    given = ", ".join(argument.name for argument in arguments)
    module.define(
        f"def forward({signature}):\n"
        f"    if {condition}:\n"
        f"        probe = torch.empty([1, 1], dtype=torch.float32, device={device})\n"
        f"        if torch.mm(probe, probe).dtype == torch.float32:\n"
        f"            return self.fused({given})\n"
        f"    return self.original({given})\n"
    )
    return module


def _parameter(argument: torch.Argument) -> str:
    text = f"{argument.name}: {argument.type.annotation_str}"
    return f"{text}={_literal(argument.default_value)}" if argument.has_default_value() else text


def _literal(value: object) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return repr(value)

"""How a case is declared, and what becomes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fusewheel
import torch
from compiler.graphs import captured
from fusewheel._torch.overloads import OpOverload
from fusewheel.compiler import rewrite
from fusewheel.compiler.match.registry import known_patterns
from torch import Tensor
from torch.fx import GraphModule

assert fusewheel
Values = tuple[Tensor, ...]
OUTCOMES = Path(__file__).with_name("outcomes.txt")


@dataclass(frozen=True)
class Case:
    """A function of tensors, and its arguments."""

    function: Callable[..., Any]
    inputs: tuple[Tensor, ...]


CASES: dict[str, Case] = {}


def case(name: str, function: Callable[..., Any], *inputs: Tensor) -> None:
    """Declares a case."""
    assert name not in CASES, name
    CASES[name] = Case(function, inputs)


def make(*shape: int) -> Tensor:
    """The same numbers for each shape every time."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


X, Y, ROW = make(3, 16), make(3, 16) + 1, make(16)
HALF = X.bfloat16()


def copies(tensors: tuple[Tensor, ...]) -> list[Tensor]:
    """Tensors that may be written to."""
    return [t.detach().clone().requires_grad_(t.requires_grad) for t in tensors]


# What `linear` replaces depends on the processor. Without `attention` others replace the same.
PATTERNS = [pattern for pattern in known_patterns() if pattern.name != "linear"]
OTHERS = [pattern for pattern in PATTERNS if pattern.name != "attention"]


def called(module: GraphModule) -> str:
    """The functions that a graph calls."""
    calls = (node.target for node in module.graph.nodes if node.op.startswith("call"))
    return " ".join(
        str(call) if isinstance(call, (str, OpOverload)) else str(getattr(call, "__name__", call))
        for call in calls
    )


def outcome(one: Case) -> tuple[str, list[Values]]:
    """What becomes of a case: what the graph calls afterwards, and by pattern why something stays;
    then the same without `attention` if that is there. The values of each of these graphs, behind
    those of the function.
    """
    texts, values = [], [one.function(*copies(one.inputs))]
    for patterns in (PATTERNS, OTHERS):
        module = captured(one.function, *copies(one.inputs))
        report = rewrite(module, patterns=patterns)
        reasons = [f"{refusal.pattern}: {refusal.reason}" for refusal in report.refusals]
        texts.append("; ".join([called(module), *reasons]))
        values.append(module(*copies(one.inputs)))
        if "attention" not in texts[0]:
            break
    return " | ".join(texts), [v if isinstance(v, tuple) else (v,) for v in values]

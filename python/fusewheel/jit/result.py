"""Everything that `optimize` knows about its result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from fusewheel.compiler.match.report import Report
from fusewheel.jit.graph.passes import TorchScript
from fusewheel.jit.inputs import Assumptions


@dataclass(frozen=True)
class Lowered:
    """The result of rewriting a module.

    Attributes:
        module: the module to run; it takes all inputs that the original takes.
        original: the frozen graph without fused operators.
        arguments: the arguments of ``forward``, from its schema.
        assumptions: the conditions on the inputs of `fused`; None without an example.
        fused: the graph that runs on inputs like the example; None if nothing was replaced.
        report: what was replaced, and what was not.
        reason: why the graph was not examined; empty if it was.
        failed: whether the reason is an error in the rewrite.
    """

    module: TorchScript
    original: TorchScript
    arguments: Sequence[torch.Argument]
    assumptions: Assumptions | None = None
    fused: TorchScript | None = None
    report: Report = field(default_factory=Report)
    reason: str = ""
    failed: bool = False

"""What `optimize` knows about its result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from fusewheel.compiler.report import Report

from .inputs import Assumptions
from .passes import TorchScript


@dataclass(frozen=True)
class Lowered:
    """A module and what became of it.

    Attributes:
        module: what to run: it takes any input that the original takes.
        original: the frozen graph without fused operators.
        arguments: of ``forward``, as its schema has them.
        assumptions: what the example inputs are like; None if there is no example to go by.
        fused: the part that runs on inputs like these; None if nothing was replaced.
        report: what was replaced and what not.
        reason: why nothing was looked at; empty otherwise.
        failed: whether that is an error of the rewrite.
    """

    module: TorchScript
    original: TorchScript
    arguments: Sequence[torch.Argument]
    assumptions: Assumptions | None = None
    fused: TorchScript | None = None
    report: Report = field(default_factory=Report)
    reason: str = ""
    failed: bool = False

"""The compiler: replaces parts of unmodified models by fused operators.

``torch.compile(model, backend="fusewheel")`` finds `backend` through the entry-point group
``torch_dynamo_backends``. `export` returns an ExportedProgram. `explain` prints what either of them
replaces in a model. Importing this package loads neither Dynamo nor Inductor.
"""

from __future__ import annotations

from fusewheel.compiler.entry.dynamo import backend
from fusewheel.compiler.entry.explain import explain
from fusewheel.compiler.entry.export import export
from fusewheel.compiler.entry.freeze import freeze
from fusewheel.compiler.entry.generation import capture_generation
from fusewheel.compiler.ir.pattern import Builder, Context, Match, Pattern, Refuse
from fusewheel.compiler.match.registry import register, unregister
from fusewheel.compiler.match.report import (
    AttentionCall,
    GraphBreak,
    ProgramPart,
    Refusal,
    Replacement,
    Report,
)
from fusewheel.compiler.match.rewrite import rewrite
from fusewheel.compiler.match.switches import Disabled, disable, disabled

__all__ = [
    "AttentionCall",
    "Builder",
    "Context",
    "Disabled",
    "GraphBreak",
    "Match",
    "Pattern",
    "ProgramPart",
    "Refusal",
    "Refuse",
    "Replacement",
    "Report",
    "backend",
    "disable",
    "disabled",
    "explain",
    "export",
    "freeze",
    "register",
    "rewrite",
    "unregister",
]

capture_generation()

"""Compiler: puts fusewheel's operators into unmodified models.

``torch.compile(model, backend="fusewheel")`` finds `backend` through the entry-point group
``torch_dynamo_backends``; `export` gives an ExportedProgram; `explain` reports what either does to
a model. Importing this package loads neither Dynamo nor Inductor.
"""

from __future__ import annotations

from .backend import backend
from .explain import explain
from .export import export
from .pattern import Builder, Context, Match, Pattern, Refuse
from .registry import register, unregister
from .report import AttentionCall, GraphBreak, Refusal, Replacement, Report
from .rewrite import rewrite
from .switches import Disabled, disable, disabled

__all__ = [
    "AttentionCall",
    "Builder",
    "Context",
    "Disabled",
    "GraphBreak",
    "Match",
    "Pattern",
    "Refusal",
    "Refuse",
    "Replacement",
    "Report",
    "backend",
    "disable",
    "disabled",
    "explain",
    "export",
    "register",
    "rewrite",
    "unregister",
]

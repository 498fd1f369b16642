"""TorchScript: traced, scripted, frozen, saved and loaded."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import torch

from fusewheel.doctor import traps
from fusewheel.doctor.case import Case, Tensors, quiet
from fusewheel.doctor.column import Column, Finding, applies
from fusewheel.doctor.columns.compilers import own
from fusewheel.doctor.columns.exporting import Module
from fusewheel.doctor.columns.memory import same

THEME = "TorchScript"


def traced(case: Case) -> Any:
    """A module that calls the operator with its tensors."""
    applies(not case.subject.random, "random")
    with quiet():
        return torch.jit.trace(Module(case).eval(), own(case), check_trace=False)


def _holds(module: Any, case: Case) -> None:
    """The graph must give eager's results, also for other values than it was traced with."""
    other = case.other_values()
    for one in (case, other):
        with quiet(), torch.no_grad():
            got = module(*own(one))
        got = got if isinstance(got, tuple) else (got,)
        same(got, one.results(), traps.BAKED)


def _trace(case: Case) -> None:
    module = traced(case)
    graph = module.inlined_graph
    calls = graph.findAllNodes("prim::PythonOp")
    if calls:
        raise Finding(traps.PYTHON_OP, str(calls[0]).strip()[:200])
    _holds(module, case)


def _freeze(case: Case) -> None:
    with quiet():
        frozen = torch.jit.freeze(traced(case))
    _holds(frozen, case)


def _saved(case: Case) -> None:
    module, buffer = traced(case), io.BytesIO()
    with quiet():
        torch.jit.save(module, buffer)
        buffer.seek(0)
        loaded = torch.jit.load(buffer)
    _holds(loaded, case)


def _script(case: Case) -> None:
    applies(not case.subject.random, "random")
    schema = case.subject.schema
    if schema is None:
        with quiet():
            scripted: Any = torch.jit.script(case.subject.call)
    else:
        names = [a.name for a in schema.arguments][: len(case.arguments)]
        types = [_annotation(a) for a in schema.arguments]
        signature = ", ".join(f"{n}_: {t}" for n, t in zip(names, types, strict=False))
        operator = "torch.ops." + schema.name.replace("::", ".")
        call = f"{operator}({', '.join(f'{n}_' for n in names)})"
        with quiet():
            unit = torch.jit.CompilationUnit(f"def f({signature}):\n    return {call}\n")
        scripted = unit.f

    def function(*tensors: Any) -> Tensors:
        subject = replace(case.subject, call=scripted)
        return Case(subject, case.given(tensors)).function(*tensors)

    _holds(function, case)


def _annotation(argument: Any) -> str:
    kind = str(argument.type.annotation_str)
    return kind.replace("number", "float")


COLUMNS = (
    Column("trace", THEME, "jit.trace, with other values too", _trace, most=1),
    Column("script", THEME, "jit.script", _script, most=1, trap=traps.NOT_SCRIPTABLE),
    Column("freeze", THEME, "jit.freeze", _freeze, most=1),
    Column("jit saved", THEME, "saved and loaded", _saved, most=1),
)

"""Runs operators in forked and spawned processes."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import torch

from fusewheel._core.process import Child, ChildError, Method, values
from fusewheel.doctor import traps
from fusewheel.doctor.case import Case, Subject, Tensors
from fusewheel.doctor.column import Column, Elsewhere, Finding, applies
from fusewheel.doctor.columns.compilers import overload
from fusewheel.doctor.columns.values import equal
from fusewheel.doctor.traps import Trap

THEME = "processes"
SECONDS = 60.0
Call = tuple[str, str, tuple[Any, ...]]


def call_of(case: Case) -> Call:
    """A call in a form that can be pickled: name, overload, arguments."""
    op = overload(case)
    return op._schema.name, op._overloadname, case.given([t.clone() for t in case.tensors])


def elsewhere(cases: Sequence[Case], method: Method) -> list[Tensors]:
    """The results of cases in a process that is started by this method."""
    modules = [m for case in cases for m in case.subject.modules]
    try:
        with Child(_results, modules, [call_of(case) for case in cases], method=method) as child:
            results: list[Tensors]
            (results,) = values([child], SECONDS)
    except ChildError as error:
        if error.late:
            raise Finding(traps.HANG, str(error)) from None
        raise Finding(traps.FORK if method == "fork" else traps.SPAWN, str(error)) from None
    return results


def _results(modules: Sequence[str], calls: Sequence[Call]) -> list[Tensors]:
    for name in modules:
        importlib.import_module(name)
    results = []
    for name, overload_name, arguments in calls:
        namespace, _, op = name.partition("::")
        call = getattr(getattr(getattr(torch.ops, namespace), op), overload_name or "default")
        results.append(Case(Subject(name, call, call._schema), arguments).results())
    return results


def _place(method: Method, trap: Trap) -> Elsewhere:
    def results(cases: Sequence[Case]) -> list[Tensors]:
        for case in cases:
            applies(not case.subject.random, "random")
            overload(case)
            if method == "spawn":
                applies(bool(case.subject.modules), "no module to import is known")
        return elsewhere(cases, method)

    def agrees(case: Case, got: Tensors) -> None:
        if not equal(got, case.results()):
            raise Finding(trap, f"another result from a {method}ed process")

    return Elsewhere(results, agrees)


FORK, SPAWN = _place("fork", traps.FORK), _place("spawn", traps.SPAWN)
COLUMNS = (
    Column("fork", THEME, "a forked process", FORK.check, most=1, elsewhere=FORK),
    Column("spawn", THEME, "a spawned process", SPAWN.check, most=1, elsewhere=SPAWN),
)

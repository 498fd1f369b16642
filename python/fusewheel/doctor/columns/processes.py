"""Runs operators in forked and spawned processes."""

from __future__ import annotations

import importlib
import multiprocessing
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from fusewheel.doctor import traps
from fusewheel.doctor.case import Case, Tensors, quiet
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


def elsewhere(cases: Sequence[Case], method: str) -> list[Tensors]:
    """The results of cases in a process that is started by this method."""
    context: Any = multiprocessing.get_context(method)
    modules = [m for case in cases for m in case.subject.modules]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        torch.save([call_of(case) for case in cases], path / "calls")
        with quiet():
            process = context.Process(target=_work, args=(tuple(modules), folder), daemon=True)
            process.start()
        process.join(SECONDS)
        trap = traps.FORK if method == "fork" else traps.SPAWN
        if process.is_alive():
            process.kill()
            process.join()
            raise Finding(traps.HANG, f"no result from a {method}ed process in {SECONDS:.0f} s")
        if process.exitcode:
            raise Finding(trap, _last_words(path, process.exitcode))
        results: list[Tensors] = torch.load(path / "results", weights_only=False)
        return results


def _last_words(folder: Path, code: int) -> str:
    error = folder / "error"
    return error.read_text() if error.exists() else f"it ended with exit status {code}"


def _work(modules: tuple[str, ...], folder: str) -> None:
    path = Path(folder)
    try:
        for name in modules:
            importlib.import_module(name)
        results = []
        for name, overload_name, arguments in torch.load(path / "calls", weights_only=False):
            namespace, _, op = name.partition("::")
            call = getattr(getattr(getattr(torch.ops, namespace), op), overload_name or "default")
            from fusewheel.doctor.case import Subject

            results.append(Case(Subject(name, call, call._schema), arguments).results())
        torch.save(results, path / "results")
    except BaseException as error:
        (path / "error").write_text(f"{type(error).__name__}: {error}")
        raise SystemExit(1) from None


def _place(method: str, trap: Trap) -> Elsewhere:
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

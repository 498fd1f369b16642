"""Examines an operator of any package: does it work in every part of PyTorch?

    fusewheel.doctor.check(torch.ops.my_package.my_op.default, [(torch.randn(3, 4),)])

or, from a shell, `python -m fusewheel doctor my_package::my_op --samples my_module:samples`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fusewheel.doctor.case import Case, Subject
from fusewheel.doctor.column import Column
from fusewheel.doctor.columns import COLUMNS
from fusewheel.doctor.isolation import isolated
from fusewheel.doctor.outcome import Outcome, Status, examine
from fusewheel.doctor.report import Report

Samples = Iterable[Any] | Callable[[], Iterable[Any]]

if TYPE_CHECKING:
    from fusewheel.doctor.testing import tests_of as tests_of

__all__ = [
    "COLUMNS",
    "Column",
    "Outcome",
    "Report",
    "Status",
    "cases_of",
    "check",
    "columns_named",
    "subject_of",
    "tests_of",
]


def __getattr__(name: str) -> Any:
    # It is made of what is defined here.
    if name == "tests_of":
        return importlib.import_module("fusewheel.doctor.testing").tests_of
    raise AttributeError(f"module 'fusewheel.doctor' has no attribute '{name}'")


def check(
    op: Any,
    samples: Samples,
    *,
    columns: Sequence[str] = (),
    slow: bool = False,
    seconds: float = 120.0,
    isolate: bool = True,
    modules: Sequence[str] = (),
    progress: Callable[[int, int, str], None] | None = None,
) -> Report:
    """Runs the columns of the conformance matrix over an operator.

    Args:
        op: an overload (`torch.ops.my_package.my_op.default`), a packet with one overload, or any
            Python function of tensors.
        samples: argument tuples (or single tensors) that the operator takes, or a function that
            gives them, which is called anew for each column. Small ones: a few dozen elements.
        columns: the names of those to run; by default all that are not slow.
        slow: whether to run those too that take a C++ compiler or gigabytes of memory.
        seconds: for each column; what takes longer hangs.
        isolate: whether each column runs in a process of its own, forked from this one. Without it
            a crash is one of this process.
        modules: what a fresh process must import to have the operator.
        progress: called with the number of columns done, the number of all, and the next's name.

    Returns:
        What works, fails, is refused, or does not apply, and why.

    Raises:
        ValueError: there are no samples, or a column's name is unknown.
        TypeError: `op` has several overloads, or is nothing to call.
    """
    subject = subject_of(op, modules)
    chosen = columns_named(columns, slow)

    def cases() -> list[Case]:
        return cases_of(subject, samples)

    if not callable(samples):
        samples = tuple(samples)
        if not samples:
            raise ValueError("doctor: samples must hold at least one tuple of arguments, got none")
    outcomes = []
    for done, column in enumerate(chosen):
        if progress is not None:
            progress(done, len(chosen), column.name)
        run = isolated(column, cases, seconds) if isolate else examine(column, cases())
        outcomes.append(run)
    if progress is not None:
        progress(len(chosen), len(chosen), "")
    return Report(subject.name, tuple(outcomes))


def subject_of(op: Any, modules: Sequence[str] = ()) -> Subject:
    """What `check` examines, of an overload, a packet or a function."""
    if isinstance(op, torch._ops.OpOverloadPacket):
        overloads = op.overloads()
        if len(overloads) != 1:
            raise TypeError(f"doctor: {op} has the overloads {overloads}, name one of them")
        op = getattr(op, overloads[0])
    if isinstance(op, torch._ops.OpOverload):
        return Subject(op.name(), op, op._schema, tuple(modules))
    inner = getattr(op, "_opoverload", None)
    if isinstance(inner, torch._ops.OpOverload):
        return subject_of(inner, modules)  # of torch.library.custom_op
    if not callable(op):
        raise TypeError(f"doctor: op must be an operator or a function, got {type(op).__name__}")
    module = getattr(op, "__module__", "")
    return Subject(f"{module}.{getattr(op, '__qualname__', repr(op))}", op, None, tuple(modules))


def cases_of(subject: Subject, samples: Samples) -> list[Case]:
    """One case for each sample.

    Raises:
        ValueError: there are none.
    """
    given = samples() if callable(samples) else samples
    cases = [Case(subject, (s,) if isinstance(s, Tensor) else tuple(s)) for s in given]
    if not cases:
        raise ValueError("doctor: samples must give at least one tuple of arguments, got none")
    return cases


def columns_named(names: Sequence[str] = (), slow: bool = False) -> tuple[Column, ...]:
    """The columns of those names; without any all, of which the slow ones have to be asked for.

    Raises:
        ValueError: there is no column of a name.
    """
    known = {column.name: column for column in COLUMNS}
    for name in names:
        if name not in known:
            raise ValueError(f"doctor: no column '{name}'; there are {', '.join(known)}")
    if names:
        return tuple(known[name] for name in names)
    return tuple(column for column in COLUMNS if slow or not column.slow)


def bar(done: int, total: int, name: str) -> None:
    """A progress bar on standard error, if that is a terminal."""
    if sys.stderr.isatty():
        filled = 30 * done // total
        line = f"\r[{'#' * filled}{'.' * (30 - filled)}] {done}/{total} {name:20}"
        print(line, end="" if done < total else "\n", file=sys.stderr, flush=True)

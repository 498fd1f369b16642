"""Examines one operator with samples of its arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from fusewheel._core.progress import progress
from fusewheel._torch.overloads import OpOverload, OpOverloadPacket
from fusewheel.doctor.case import Case, Subject
from fusewheel.doctor.column import Column
from fusewheel.doctor.columns import COLUMNS
from fusewheel.doctor.isolation import isolated
from fusewheel.doctor.outcome import examine
from fusewheel.doctor.report import Report

Samples = Iterable[Any] | Callable[[], Iterable[Any]]


def check(
    op: Any,
    samples: Samples,
    *,
    columns: Sequence[str] = (),
    slow: bool = False,
    seconds: float = 120.0,
    isolate: bool = True,
    modules: Sequence[str] = (),
    fixed: Sequence[str] = (),
) -> Report:
    """Runs the doctor's columns over an operator, with a progress bar if a terminal is there.

    Args:
        op: an overload (`torch.ops.my_package.my_op.default`), an operator with only one overload
            (`torch.ops.my_package.my_op`), or any Python function of tensors.
        samples: tuples of arguments (or single tensors) that the operator takes, with a few dozen
            elements each; or a function that returns them and is called again for each column.
        columns: the names of the columns to run; default (), which means all that are not slow.
        slow: whether to also run the columns that need a C++ compiler, gigabytes of memory or
            several processes; default False.
        seconds: the time for each column; a column that takes longer is reported as hanging.
            Default 120.
        isolate: whether each column runs in a process of its own, forked from this one; default
            True. Without it, a crash of the operator ends this process.
        modules: the modules that a new process imports to have the operator; default ().
        fixed: the names of arguments whose values mean something else than a number, such as
            positions in a floating tensor: the doctor neither changes them nor differentiates by
            them. Default ().

    Returns:
        What works, fails, is refused, or does not apply, with the reasons.

    Raises:
        ValueError: there are no samples, or a name in `columns` or `fixed` is unknown.
        TypeError: `op` has several overloads, or is not callable.
        RuntimeError: `isolate` is true and this system cannot fork.
    """
    subject = subject_of(op, modules, fixed)
    chosen = columns_named(columns, slow)

    def cases() -> list[Case]:
        return cases_of(subject, samples)

    if not callable(samples):
        samples = tuple(samples)
        if not samples:
            raise ValueError("doctor: samples must hold at least one tuple of arguments, got none")
    outcomes = []
    for column in progress(chosen, describe=lambda column: column.name):
        run = isolated(column, cases, seconds) if isolate else examine(column, cases())
        outcomes.append(run)
    return Report(subject.name, tuple(outcomes))


def subject_of(op: Any, modules: Sequence[str] = (), fixed: Sequence[str] = ()) -> Subject:
    """The subject for an overload, a packet or a function.

    Raises:
        ValueError: there is no argument of a name in `fixed`.
        TypeError: `op` has several overloads, or is not callable.
    """
    subject = replace(_subject_of(op, modules), fixed=tuple(fixed))
    for name in fixed:
        if name not in subject.names:
            known = ", ".join(subject.names)
            raise ValueError(f"doctor: {subject.name} has no argument '{name}'; there are {known}")
    return subject


def _subject_of(op: Any, modules: Sequence[str]) -> Subject:
    if isinstance(op, OpOverloadPacket):
        overloads = op.overloads()
        if len(overloads) != 1:
            raise TypeError(f"doctor: {op} has the overloads {overloads}, name one of them")
        op = getattr(op, overloads[0])
    if isinstance(op, OpOverload):
        return Subject(op.name(), op, op._schema, tuple(modules))
    inner = getattr(op, "_opoverload", None)
    if isinstance(inner, OpOverload):
        return _subject_of(inner, modules)  # of torch.library.custom_op
    if not callable(op):
        raise TypeError(f"doctor: op must be an operator or a function, got {type(op).__name__}")
    module = getattr(op, "__module__", "")
    return Subject(f"{module}.{getattr(op, '__qualname__', repr(op))}", op, None, tuple(modules))


def cases_of(subject: Subject, samples: Samples) -> list[Case]:
    """One case for each sample.

    Raises:
        ValueError: there are no samples.
    """
    given = samples() if callable(samples) else samples
    cases = [Case(subject, (s,) if isinstance(s, Tensor) else tuple(s)) for s in given]
    if not cases:
        raise ValueError("doctor: samples must give at least one tuple of arguments, got none")
    return cases


def columns_named(names: Sequence[str] = (), slow: bool = False) -> tuple[Column, ...]:
    """The columns of these names; without names all columns, slow ones only if asked for.

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

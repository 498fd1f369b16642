"""More elements than 32 bits count."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from fusewheel.doctor import traps
from fusewheel.doctor.case import REFUSALS, Case, Tensors
from fusewheel.doctor.column import Column, Finding, applies
from fusewheel.doctor.columns.compilers import leading

THEME = "eager"
MANY = 2**31


def _repeated(case: Case, size: int, times: int) -> Case:
    """Every dimension of that size so many times one after the other."""

    def repeat(tensor: Tensor) -> Tensor:
        counts = [times if s == size else 1 for s in tensor.shape]
        return tensor.repeat(counts) if max(counts, default=1) > 1 else tensor

    return case.using([repeat(t) for t in case.tensors])


def _narrow(case: Case) -> Case:
    """In bfloat16, where the operator takes that: half of the memory."""
    narrow = case.using([t.bfloat16() if t.is_floating_point() else t for t in case.tensors])
    try:
        narrow.results()
    except REFUSALS:
        return case
    return narrow


def _row_by_row(case: Case, size: int) -> bool:
    """Whether twice the rows give twice the results."""
    twice = _repeated(case, size, 2)
    try:
        found = twice.results()
    except REFUSALS:
        return False
    wanted = _rows(case, size, 2)
    return all(a.shape == b.shape and torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def _rows(case: Case, size: int, times: int) -> Tensors:
    return tuple(
        r.repeat([times, *[1] * (r.dim() - 1)]) if r.dim() and r.shape[0] == size else r
        for r in case.results()
    )


def _huge(case: Case) -> None:
    """Rows repeated until there are so many elements; the last ones come out as the first."""
    applies(not case.subject.random, "random")
    case = _narrow(case)
    size = leading(case)
    applies(sum(s == size for t in case.tensors[:1] for s in t.shape) == 1, "a square sample")
    applies(_row_by_row(case, size), "its results are not row by row")
    tensors = (*case.tensors, *case.results())
    growing = [t for t in tensors if size in t.shape]
    times = MANY // max(t.numel() for t in growing) + 2
    # The operator may hold as much again, and what is written is there twice.
    held = [*growing, *(case.tensors[i] for i in case.written)]
    needed = 2 * times * sum(t.numel() * t.element_size() for t in held)
    applies(needed < _free(), f"needs {needed / 2**30:.0f} GiB of free memory")
    rows = _repeated(case, size, times)
    last = [r[-size:] if r.dim() and r.shape[0] != size else r for r in rows.results()]
    for a, b in zip(last, case.results(), strict=True):
        if not torch.equal(a, b):
            raise Finding(traps.HUGE, f"the last of {times * size} rows differ from the first")


def _free() -> int:
    """Bytes that programs may still take; none where the system does not say it."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))


COLUMNS = (Column("huge", THEME, "more than 2^31 elements", _huge, slow=True, most=1),)

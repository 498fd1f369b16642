"""Tensors with more than 2^31 elements."""

from __future__ import annotations

import contextlib
import itertools
import math
import mmap
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from fusewheel._core import memory
from fusewheel.doctor import traps
from fusewheel.doctor.case import REFUSALS, Case, Tensors
from fusewheel.doctor.column import Column, Finding, Refused, applies

THEME = "eager"
MANY = 2**31
# The number of sets of dimensions to try, and the part of a set that is used to measure memory.
SETS = 5000
PART = 32
# What can be narrower.
WIDE = (torch.float32, torch.float64)
# Dimensions that grow together; each is the index of a tensor and of a dimension.
Way = tuple[tuple[int, int], ...]


def _huge(case: Case) -> None:
    """A tensor of zeros with the case at its end must give the results of the case at its end."""
    applies(not case.subject.random, "random")
    applies(all(t.device.type == "cpu" for t in case.tensors), "not on a CPU")
    applies(_free() > 0, "the system does not tell what memory is used")
    applies(any(bool(r.any()) for r in case.results()), "gives nothing but zeros")
    # In float64, so that small changes by a few zeros show; more zeros would change more.
    ways = list(_ways(case.exact))
    applies(bool(ways), "zeros before its arguments change the results")
    case = _narrow(case)
    tried, least = 0, math.inf
    for way in ways:
        times = _times(case, way)
        needed = _needed(case, way, times)
        if needed > _free():
            least = min(least, needed)
            continue
        try:
            kept = _kept(case, way, times)
        except REFUSALS as error:
            raise Refused(str(error).split("\n")[0]) from error
        if not kept:
            raise Finding(traps.HUGE, f"{_grown(case, way, times)}: the end is wrong")
        tried += 1
    applies(tried > 0, f"needs {least / 2**30:.0f} GiB of free memory")


def _narrow(case: Case) -> Case:
    """The case in bfloat16, to halve the memory; tensors that need another dtype keep it."""
    floating = [i for i in case.floating if case.tensors[i].dtype in WIDE]
    for count in range(3):
        for wide in itertools.combinations(floating, count):
            narrow = case.using(
                [
                    t.bfloat16() if i in floating and i not in wide else t
                    for i, t in enumerate(case.tensors)
                ]
            )
            if _results(narrow) is not None:
                return narrow
    return case


def _ways(case: Case) -> Iterator[Way]:
    """The smallest sets of dimensions that can grow without changing the results, until every
    tensor that can grow is in one.
    """
    dims = [(i, d) for i, t in enumerate(case.tensors) for d in range(t.dim()) if t.numel()]
    sets = (itertools.combinations(dims, count + 1) for count in range(len(dims)))
    found: list[set[tuple[int, int]]] = []
    tensors: set[int] = set()
    for way in itertools.islice(itertools.chain.from_iterable(sets), SETS):
        if any(smaller.issubset(way) for smaller in found):
            continue
        try:
            grows = _kept(case, way, 2) and _kept(case, way, 3)
        except REFUSALS:
            continue
        if grows:
            found.append(set(way))
            if not tensors >= {*dict(way)}:
                tensors |= {*dict(way)}
                yield way


def _results(case: Case) -> Tensors | None:
    try:
        return case.results()
    except REFUSALS:
        return None


def _grown(case: Case, way: Way, times: int) -> Case:
    tensors = list(case.tensors)
    for i in dict(way):
        old = tensors[i]
        shape = [times * size if (i, d) in way else size for d, size in enumerate(old.shape)]
        tensors[i] = _zeros(shape, old.dtype)
        _end(tensors[i], old.shape).copy_(old)
    return case.using(tensors)


def _zeros(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Zeros that need memory only where they are written to."""
    size = math.prod(shape) * dtype.itemsize
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # there are large pages in most kernels
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


def _end(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    return tensor[tuple(slice(a - b, a) for a, b in zip(tensor.shape, shape, strict=True))]


def _kept(case: Case, way: Way, times: int) -> bool:
    """Whether the results end with the results of the case.

    Raises:
        RuntimeError, ValueError, TypeError, IndexError, NotImplementedError: the operator's errors.
    """
    for old, new in zip(case.results(), _grown(case, way, times).results(), strict=True):
        if old.dim() != new.dim() or any(
            b not in (a, times * a) for a, b in zip(old.shape, new.shape, strict=True)
        ):
            return False
        try:
            # Not compared bit by bit, because sums may be in another order.
            torch.testing.assert_close(_end(new, old.shape), old, equal_nan=True)
        except AssertionError:
            return False
    return True


def _times(case: Case, way: Way) -> int:
    """How often a dimension must be repeated to have its last repetition beyond 2^31 elements."""
    twice = _grown(case, way, 2)
    old, new = ([t.numel() for t in (*c.tensors, *c.results())] for c in (case, twice))
    # A tensor with two growing dimensions becomes four times as large.
    growing = [(a, math.log2(b / a)) for a, b in zip(old, new, strict=True) if b > a]
    return min(int((MANY / size) ** (1 / power)) + 2 for size, power in growing)


def _needed(case: Case, way: Way, times: int) -> int:
    """The bytes that should be free: a quarter more than a measurement with a part says."""
    part = times // PART + 2
    grown = _grown(case, way, part)
    memory.reset_peak()
    before = memory.resident_bytes()
    grown.results()
    return 5 * (memory.peak_bytes() - before) * times // part // 4


def _free() -> int:
    """The bytes of free memory; 0 if the peak of a part cannot be measured."""
    return memory.available_bytes() if memory.reset_peak() else 0


COLUMNS = (Column("huge", THEME, "more than 2^31 elements", _huge, slow=True, most=1),)

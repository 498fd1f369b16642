"""Plain calls: the same bits each time and in each thread, and what the schema declares."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import torch
from torch import Tensor

from fusewheel._torch.builtins import tree_flatten
from fusewheel._torch.dispatcher import has_kernel, registrations
from fusewheel.doctor import traps
from fusewheel.doctor.case import REFUSALS, Case, Tensors, quiet
from fusewheel.doctor.column import Column, Finding, Refused, applies

THREADS = 32
# More elements than an operator makes of an empty tensor.
MANY = 2**20
THEME = "eager"


def equal(a: Tensors, b: Tensors) -> bool:
    """Whether all bits are equal; any two NaN count as equal."""
    return len(a) == len(b) and all(
        x.shape == y.shape and x.dtype == y.dtype and bool(((x == y) | ((x != x) & (y != y))).all())
        for x, y in zip(a, b, strict=True)
    )


def _eager(case: Case) -> None:
    case.results()


def _registration(case: Case) -> None:
    applies(case.subject.schema is not None, "not a dispatcher operator")
    dump = registrations(_qualified(case))
    twice = [line.split(" ")[0] for line in dump.splitlines() if "(inactive)" in line]
    # A fake may replace another one, as PyTorch's decompositions do.
    twice = [key for key in twice if not key.startswith("Meta")]
    if twice:
        raise Finding(traps.DOUBLE, f"a second kernel hides the first one: {', '.join(twice)}")


def _qualified(case: Case) -> str:
    schema = case.subject.schema
    assert schema is not None
    return f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name


def _determinism(case: Case) -> None:
    applies(not case.subject.random, "random")
    first = case.results()
    for _ in range(3):
        if not equal(first, case.results()):
            raise Finding(traps.DETERMINISM, "the same arguments gave other bits the second time")


def _threads(case: Case) -> None:
    applies(not case.subject.random, "random")
    cases = [case, case.other_values()]
    want = [c.results() for c in cases]
    got: list[Tensors | BaseException] = [()] * THREADS
    barrier = threading.Barrier(THREADS)

    def run(i: int) -> None:
        barrier.wait()
        try:
            with torch.no_grad():
                for _ in range(3):
                    got[i] = cases[i % 2].function(*cases[i % 2].tensors)
        except BaseException as error:
            got[i] = error

    with quiet():
        workers = [threading.Thread(target=run, args=(i,)) for i in range(THREADS)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    for i, result in enumerate(got):
        if isinstance(result, BaseException):
            raise Finding(traps.THREADS, f"one of {THREADS} threads: {result}")
        if not equal(result, want[i % 2]):
            raise Finding(traps.THREADS, f"one of {THREADS} threads got another result")


def _free_threads(case: Case) -> None:
    """The same without Python's global lock, which runs one thread after the other."""
    locked = getattr(sys, "_is_gil_enabled", lambda: True)()
    applies(not locked, "this Python has a global lock")
    _threads(case)


def _schema(case: Case) -> None:
    """Writes and aliases must be as declared, and a write must increment the version."""
    given = case.given([t.clone() for t in case.tensors])
    tensors = [t for t in tree_flatten(given)[0] if isinstance(t, Tensor)]
    before = [(t.clone(), t._version) for t in tensors]
    with torch.no_grad(), quiet():
        outputs = case.subject.call(*given)
    for i, (tensor, (old, version)) in enumerate(zip(tensors, before, strict=True)):
        changed = not equal((tensor,), (old,))
        if changed and i not in case.written:
            raise Finding(traps.UNDECLARED_WRITE, f"tensor {i} of the arguments was changed")
        if changed and tensor._version == version:
            raise Finding(traps.VERSION, f"tensor {i} was written, its version still is {version}")
    applies(case.subject.schema is not None, "not a dispatcher operator: no schema")
    declared = _declared_aliases(case)
    for output in tree_flatten(outputs)[0]:
        if not isinstance(output, Tensor) or not output.numel():
            continue
        for i, tensor in enumerate(tensors):
            if share(output, tensor) and i not in declared:
                raise Finding(traps.UNDECLARED_ALIAS, f"an output lies in the memory of tensor {i}")


def share(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors share memory."""
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def _declared_aliases(case: Case) -> set[int]:
    """The tensors that outputs may alias by the schema; all of them for a composite."""
    schema = case.subject.schema
    assert schema is not None
    if has_kernel(_qualified(case), "CompositeImplicitAutograd"):
        return set(range(len(case.tensors)))
    found, index = set(), 0
    for argument, value in zip(schema.arguments, case.arguments, strict=False):
        for leaf in tree_flatten(value)[0]:
            if isinstance(leaf, Tensor):
                if argument.alias_info is not None:
                    found.add(index)
                index += 1
    return found


def _scalars(case: Case) -> None:
    """All digits of a float argument must count."""
    schema = case.subject.schema
    applies(schema is not None, "not a dispatcher operator: no schema")
    assert schema is not None
    floats = [
        i
        for i, (a, value) in enumerate(zip(schema.arguments, case.arguments, strict=False))
        if str(a.type) in ("float", "number") and isinstance(value, float)
    ]
    applies(bool(floats) and not case.subject.random, "no float argument")
    for i in floats:
        near, far, other = (_with(case, i, v) for v in (1.25, 1.75, 2.25))
        if near is None or far is None or other is None:
            continue
        if equal(near, far) and not equal(far, other):
            name = schema.arguments[i].name
            raise Finding(traps.TRUNCATED, f"{name} = 1.25 and 1.75 give the same, 2.25 does not")


def _with(case: Case, index: int, value: float) -> Tensors | None:
    arguments = list(case.arguments)
    arguments[index] = value
    try:
        return Case(case.subject, arguments).results()
    except REFUSALS:
        return None


def smaller(case: Case, size: int) -> Iterator[Case]:
    """The case with all dimensions of one size changed to `size`."""
    for old in dict.fromkeys(s for t in case.tensors for s in t.shape):
        if old != size:
            resized = case.resized(old, size)
            if resized is not None:
                yield resized


def _empty(case: Case) -> None:
    applies(any(t.dim() for t in case.tensors), "no dimensions")
    cases = list(smaller(case, 0))
    if not cases:
        raise Refused("no dimension may be empty")
    for empty in cases:
        if not equal(empty.results(), empty.results()):
            raise Finding(traps.EMPTY, f"{empty}: another result every time")
    for empty in cases:
        for t in empty.results():
            if t.numel() > MANY:
                raise Finding(traps.EMPTY, f"{empty}: an output of shape {list(t.shape)}")


def _zero_dim(case: Case) -> None:
    floating = [case.tensors[i] for i in case.floating]
    applies(bool(floating) and all(t.numel() for t in floating), "no floating tensor")
    scalars = case.using(
        [t.flatten()[0].clone() if t.is_floating_point() else t for t in case.tensors]
    )
    try:
        results = scalars.results()
    except REFUSALS as error:
        raise Refused(str(error).split("\n")[0]) from error
    rows = case.using(
        [t.flatten()[:1].clone() if t.is_floating_point() else t for t in case.tensors]
    )
    try:
        want = rows.results()
    except REFUSALS:
        return
    # If all results have no dimension, they must be equal to those of tensors of shape [1].
    # Otherwise the operator defines what a tensor without dimensions means.
    if not case.subject.random and all(t.dim() == 0 for t in results):
        for a, b in zip(results, want, strict=True):
            if b.shape == (1,) and not equal((a,), (b[0],)):
                raise Finding(traps.STRIDES, "a 0-dim tensor gives another value than one of [1]")


COLUMNS = (
    Column("eager", THEME, "runs", _eager),
    Column("registration", THEME, "one kernel for a key", _registration, most=1),
    Column("schema", THEME, "writes, aliases and versions are as the schema says", _schema),
    Column("scalars", THEME, "float arguments count in all digits", _scalars),
    Column("deterministic", THEME, "same bits again", _determinism),
    Column("threads", THEME, f"same bits from {THREADS} threads at once", _threads, most=1),
    Column("free threads", THEME, "the same in free-threaded Python", _free_threads, most=1),
    Column("empty", THEME, "dimensions without elements", _empty, most=1),
    Column("0-dim", THEME, "tensors without dimensions", _zero_dim, most=1),
)

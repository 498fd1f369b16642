"""What is left out unless it is asked for: programs without Python, tensors of many elements."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from doctor.defects import DEFECTS
from fusewheel import doctor, ops
from fusewheel.doctor import program
from fusewheel.doctor.columns import huge
from fusewheel.doctor.conformance import outcomes
from fusewheel.doctor.outcome import Outcome, Status, examine

pytestmark = pytest.mark.long

BY_NAME = {column.name: column for column in doctor.COLUMNS}


def told(column: str, op, *arguments) -> Outcome:
    return examine(BY_NAME[column], doctor.cases_of(doctor.subject_of(op), [arguments]))


def test_they_have_to_be_asked_for():
    left_out = {"AOTInductor", "C++ TorchScript", "C++ package", "huge", "DTensor", "FSDP2"}
    quick, every = doctor.columns_named(), doctor.columns_named(slow=True)
    assert {c.name for c in every} - {c.name for c in quick} == left_out
    assert [c.name for c in doctor.columns_named(["huge"])] == ["huge"]


def test_every_operator_runs_in_cpp():
    """One program, and a TorchScript file for each."""
    for declared, outcome in zip(
        ops.operators(), outcomes(BY_NAME["C++ TorchScript"], ops.operators()), strict=True
    ):
        assert outcome.status is Status.WORKS, f"{declared.name}: {outcome}"


def test_what_needs_python_is_named():
    defect = next(d for d in DEFECTS if d.name == "needs_python")
    outcome = told("C++ TorchScript", defect.faulty, torch.ones(3))
    assert (outcome.status, outcome.trap) == (Status.FAILS, defect.trap.name), outcome
    assert "defects::needs_python" in outcome.reason
    assert outcome.remedy == defect.trap.remedy
    assert outcome.arguments
    outcome = told("C++ TorchScript", torch.ops.defects.needs_python.default, torch.ones(3))
    assert (outcome.status, outcome.reason) == (Status.NOT_APPLICABLE, "defined in Python")


def test_without_a_compiler_it_does_not_apply(monkeypatch: pytest.MonkeyPatch):
    # The program that other tests have compiled stays.
    monkeypatch.setattr(program, "program", program.program.__wrapped__)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    outcome = told("C++ TorchScript", torch.ops.aten.neg.default, torch.ones(3))
    assert outcome.status is Status.NOT_APPLICABLE
    assert "no C++ compiler" in outcome.reason


def in_float32(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    if {t.dtype for t in (a, b, c)} != {torch.float32}:
        raise RuntimeError("takes float32 only")
    return a + b + c


def few_alone(x: torch.Tensor) -> torch.Tensor:
    if x.numel() > 2000:
        raise RuntimeError("at most 2000 elements\nfound: more")
    return x + 1


def but_for(size: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Refuses one size."""

    def function(x: torch.Tensor) -> torch.Tensor:
        if len(x) == size:
            raise RuntimeError(f"not {size} elements")
        return x + 1

    return function


def behind_zeros(x: torch.Tensor) -> torch.Tensor:
    """The result grows by the square of what its argument grows by."""
    return torch.cat([x.new_zeros(len(x) ** 2), x])


def test_many_elements(monkeypatch: pytest.MonkeyPatch):
    """2^31 take minutes, so here the limit is lower."""
    monkeypatch.setattr(huge, "MANY", 2**12)
    rows = torch.arange(1.0, 13.0).view(3, 4)

    aten = torch.ops.aten
    for op, *arguments in (
        (aten.neg.default, rows),
        (aten.sum.default, rows),
        (aten.mm.default, rows, torch.ones(4, 5)),
        (aten._softmax.default, rows, 1, False),
        (aten.add_.Tensor, rows, torch.ones(4)),
        (aten.embedding.default, rows, torch.tensor([2, 0])),
        (in_float32, rows, rows, rows),
        (aten.frexp.Tensor, rows / 25 + 0.5),  # all exponents are 0
    ):
        assert told("huge", op, *arguments).status is Status.WORKS, op
    changed = "zeros before its arguments change the results"
    for op, *arguments, reason in (
        (aten.logsumexp.default, rows, [0, 1], changed),
        (behind_zeros, rows[0], changed),
        (but_for(8), rows[0], changed),
        (but_for(12), rows[0], changed),
        (aten.gt.Tensor, rows, rows, "gives nothing but zeros"),
        (aten.bernoulli.default, rows / 12, "random"),
    ):
        assert told("huge", op, *arguments).reason == reason
    refused = told("huge", few_alone, rows)
    assert (refused.status, refused.reason) == (Status.REFUSES, "at most 2000 elements")
    monkeypatch.setattr(huge, "_needed", lambda *arguments: 2**34)
    monkeypatch.setattr(huge, "_free", lambda: 2**33)
    assert told("huge", aten.neg.default, rows).reason == "needs 16 GiB of free memory"
    monkeypatch.setattr(huge, "_free", lambda: 2**34)
    assert told("huge", aten.neg.default, rows).status is Status.WORKS
    monkeypatch.setattr(huge, "_free", lambda: 0)
    assert "does not tell" in told("huge", aten.neg.default, rows).reason


def test_many_elements_are_tried_in_two_bytes_each(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(huge, "MANY", 2**12)
    seen = set()

    def operator(x: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        seen.add((x.dtype, x.numel() > 12))
        return x[row] + 1

    arguments = torch.arange(1.0, 13.0).view(3, 4), torch.tensor(2)
    assert told("huge", operator, *arguments).status is Status.WORKS
    assert (torch.bfloat16, True) in seen
    assert (torch.float32, True) not in seen


def test_the_ways_to_many_elements():
    """Dimensions that belong together, until every tensor has grown."""
    aten, make = torch.ops.aten, torch.ones
    (case,) = doctor.cases_of(doctor.subject_of(aten.mm.default), [(make(3, 4), make(4, 5))])
    assert list(huge._ways(case)) == [((0, 0),), ((1, 1),)]
    (case,) = doctor.cases_of(doctor.subject_of(aten.dot.default), [(make(4), make(4))])
    assert list(huge._ways(case)) == [((0, 0), (1, 0))]

    def shorter(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if len(y) > len(x):
            raise ValueError("y must not be longer than x")
        return x.sum() + y.sum()

    # y grows only with x, which grows by itself.
    (case,) = doctor.cases_of(doctor.subject_of(shorter), [(make(4), make(4))])
    assert list(huge._ways(case)) == [((0, 0),)]
    (case,) = doctor.cases_of(doctor.subject_of(torch.diag_embed), [(make(4, 4),)])
    times = huge._times(case, ((0, 0), (0, 1)))  # 64 elements, which grow by times ** 3
    assert 64 * (times - 2) ** 3 <= 2**31 < 64 * (times - 1) ** 3
    # The result is the largest.
    (case,) = doctor.cases_of(doctor.subject_of(aten.mm.default), [(make(3, 1), make(1, 5))])
    times = huge._times(case, ((0, 0),))
    assert (times - 2) * 15 <= 2**31 < (times - 1) * 15


@pytest.mark.skipif(not huge._free(), reason="the system does not tell what memory is used")
def test_the_memory_it_takes():
    """The results; the zeros that are read take none."""
    neg = doctor.subject_of(torch.ops.aten.neg.default)
    (case,) = doctor.cases_of(neg, [(torch.ones(3, 4).bfloat16(),)])
    way = ((0, 0),)
    times = huge._times(case, way)
    torch.ones(2**27)  # 512 MiB that were needed earlier do not count
    assert 1.2 < huge._needed(case, way, times) / (2 * 12 * times) < 1.4

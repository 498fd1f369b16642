"""What is left out unless it is asked for: programs without Python, tensors of many elements."""

from __future__ import annotations

import pytest
import torch
from doctor.defects import operator
from fusewheel import doctor, ops
from fusewheel.doctor import program, traps
from fusewheel.doctor.columns import huge
from fusewheel.doctor.conformance import outcomes
from fusewheel.doctor.outcome import Outcome, Status, examine

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
        ops.operators(), outcomes(BY_NAME["C++ TorchScript"]), strict=True
    ):
        assert outcome.status is Status.WORKS, f"{declared.name}: {outcome}"


def test_what_needs_python_is_found_in_cpp():
    op = operator("defined_in_python", lambda x: x * 2)

    def function(x):
        return op(x)

    outcome = told("C++ TorchScript", function, torch.ones(3))
    assert (outcome.status, outcome.trap) == (Status.FAILS, traps.CPP.name)
    assert "defects::defined_in_python" in outcome.reason
    outcome = told("C++ TorchScript", op, torch.ones(3))
    assert (outcome.status, outcome.reason) == (Status.NOT_APPLICABLE, "defined in Python")


def test_without_a_compiler_it_does_not_apply(monkeypatch: pytest.MonkeyPatch):
    program.program.cache_clear()
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    outcome = told("C++ TorchScript", torch.ops.aten.neg.default, torch.ones(3))
    assert outcome.status is Status.NOT_APPLICABLE
    assert "no C++ compiler" in outcome.reason


def test_many_elements(monkeypatch: pytest.MonkeyPatch):
    """2^31 take minutes, so here the limit is lower."""
    monkeypatch.setattr(huge, "MANY", 2**12)

    def wraps(x):
        return x * 2 if x.numel() < 2**12 else torch.cat((x[: 2**12 // 4] * 2, x[2**12 // 4 :]))

    op = operator("wraps", wraps)
    outcome = told("huge", op, torch.ones(3, 4))
    assert (outcome.status, outcome.trap) == (Status.FAILS, traps.HUGE.name), outcome
    assert told("huge", torch.ops.aten.neg.default, torch.ones(3, 4)).status is Status.WORKS
    for op, reason in (
        (torch.ops.aten.sum.default, "its results are not row by row"),
        (torch.ops.aten.bernoulli.default, "random"),
    ):
        assert told("huge", op, torch.ones(3, 4)).reason == reason
    monkeypatch.setattr(huge, "_free", lambda: 0)
    assert "of free memory" in told("huge", torch.ops.aten.neg.default, torch.ones(3, 4)).reason

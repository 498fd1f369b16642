"""A column does not apply to some operators, and says why; to others it applies only just."""

from __future__ import annotations

import contextlib
import sys

import pytest
import torch
from doctor.defects.devices import gpu
from doctor.limits import LIMITS
from fusewheel import doctor
from fusewheel.doctor.column import Column
from fusewheel.doctor.columns import COLUMNS
from fusewheel.doctor.columns.layouts import expanded, gaps, overlapping, permuted
from fusewheel.doctor.columns.values import equal
from fusewheel.doctor.outcome import examine

NAMED = {limit.column for limit in LIMITS}


def setting(column: Column) -> contextlib.AbstractContextManager[None]:
    """What the machine has, or seems to have, while a column is run."""
    return gpu() if column.theme == "devices" else contextlib.nullcontext()


@pytest.mark.parametrize("column", [c for c in COLUMNS if c.name in NAMED], ids=lambda c: c.name)
def test_what_a_column_says(column: Column, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    for limit in LIMITS:
        if limit.column != column.name:
            continue
        cases = doctor.cases_of(doctor.subject_of(limit.op), [limit.arguments])
        with setting(column):
            outcome = examine(column, cases)
        told = (outcome.status, outcome.reason)
        assert told == (limit.status, limit.reason), f"{limit.op} {cases[0]}: {outcome}"


def test_every_column_has_a_limit():
    assert {column.name for column in COLUMNS} - {"AOTInductor"} <= NAMED


def test_without_a_gpu_and_with_a_global_lock(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for lock in (lambda: True, None):
        if lock is None:  # before Python 3.13
            monkeypatch.delattr(sys, "_is_gil_enabled")
        else:
            monkeypatch.setattr(sys, "_is_gil_enabled", lock, raising=False)
        report = doctor.check(
            *(torch.square, [torch.ones(3)]),
            columns=("CUDA graph", "CUDA autocast", "free threads"),
            isolate=False,
        )
        reasons = [outcome.reason for outcome in report.outcomes]
        assert reasons == ["no CUDA device", "no CUDA device", "this Python has a global lock"]


def test_layouts():
    x = torch.arange(6.0).view(2, 3)
    between = gaps(x)._base
    assert between is not None
    assert between.isnan().tolist() == [
        [True] * 7,
        [True, False] * 3 + [True],
        [True] * 7,
        [True, False] * 3 + [True],
        [True] * 7,
    ]
    assert torch.equal(gaps(x), x)
    whole = gaps(x.long())._base
    assert whole is not None
    assert int(whole.sum()) == 15 + 35 - 6
    assert torch.equal(permuted(x), x)
    assert permuted(x).stride() == (1, 2)
    assert torch.equal(expanded(x), x[:1].repeat(2, 1))
    assert overlapping(x).tolist() == [[0, 1, 2], [1, 2, 3]]


def test_equal():
    one, nan = torch.ones(2), torch.tensor([1.0, torch.nan])
    assert equal((one, nan), (one.clone(), nan.clone()))
    for other in (one + 1, one.double(), one.view(2, 1), one[:1], nan):
        assert not equal((one,), (other,)) and not equal((other,), (one,))
    assert not equal((one,), (one, one))

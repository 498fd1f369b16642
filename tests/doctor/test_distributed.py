"""Two processes: what the planted mistakes do not show."""

from __future__ import annotations

from typing import Any

import fusewheel
import pytest
import torch
from doctor.defects.declare import Twin, doubled, library
from doctor.defects.distributed import ruled, whole
from fusewheel import doctor
from fusewheel.doctor.outcome import Outcome, Status, examine

DTENSOR, FSDP2 = (c for c in doctor.COLUMNS if c.theme == "distributed")
X = torch.linspace(-1, 2, 12).view(3, 4)


def told(column: Any, op: Any, *arguments: Any) -> Outcome:
    return examine(column, doctor.cases_of(doctor.subject_of(op), [arguments or (X,)]))


def test_parameters_in_pieces():
    assert told(FSDP2, torch.square).status is Status.WORKS
    weight = torch.linspace(0.5, 1.5, 4)
    assert told(FSDP2, fusewheel.rms_norm, X, 4, weight).status is Status.WORKS


def test_what_has_no_gradient_in_pieces():
    assert told(DTENSOR, torch.ops.aten.bitwise_not.default, X.long()).status is Status.WORKS


def test_a_tensor_that_is_written_may_have_to_stay_whole():
    """DTensor refuses to write to a copy of a tensor that is in pieces."""

    class InPlace(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            with torch.inference_mode():  # below autograd
                op(x)
            ctx.mark_dirty(x)
            return x

        backward = staticmethod(doubled)

    twin = Twin("double_", faulty=False)  # by the last character DTensor knows that it writes
    schema = "(Tensor(a!) x) -> Tensor(a!)"
    op = twin.operator(lambda x: x.mul_(2), schema, fake=lambda x: x)
    library.impl(twin.name, InPlace.apply, "Autograd")
    outcome = told(DTENSOR, ruled(op, whole))
    assert outcome.status is Status.WORKS, outcome


@pytest.mark.parametrize("name", ["is_available", "is_gloo_available"])
def test_without_gloo(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.distributed, name, lambda: False)
    outcome = told(DTENSOR, torch.square)
    assert (outcome.status, outcome.reason) == (Status.NOT_APPLICABLE, "torch without gloo")


def test_in_a_group_already(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    outcome = told(DTENSOR, torch.square)
    assert outcome.reason == "in a group of processes already"

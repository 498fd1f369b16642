"""Two processes: what is wrong there with somebody else's operator, and what is not."""

from __future__ import annotations

import os
import signal
import time
import weakref
from collections.abc import Callable
from typing import Any

import fusewheel
import pytest
import torch
from doctor.defects import operator, square_backward
from fusewheel import doctor
from fusewheel.doctor import traps
from fusewheel.doctor.columns import distributed
from fusewheel.doctor.outcome import Outcome, Status, examine
from fusewheel.doctor.traps import Trap
from torch import Tensor
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding

DTENSOR, FSDP2 = (c for c in doctor.COLUMNS if c.theme == "distributed")
X = torch.linspace(-1, 2, 12).view(3, 4)


def told(column: Any, op: Any, *arguments: Any) -> Outcome:
    return examine(column, doctor.cases_of(doctor.subject_of(op), [arguments or (X,)]))


def squares(name: str, rule: Callable[..., Any] | None, kernel: Callable[..., Any]) -> Any:
    """Somebody's operator, with this rule for one dimension of a mesh."""
    op = operator(name, kernel, backward=square_backward)
    if rule is not None:
        register_sharding(op)(rule)
    return op


def rows(x: Any) -> list[Any]:
    return [([Replicate()], [Replicate()]), ([Shard(0)], [Shard(0)]), ([Shard(1)], [Shard(1)])]


def sums(x: Any) -> list[Any]:
    return [([Replicate()], [Replicate()]), ([Partial()], [Partial()])]


@pytest.mark.parametrize(
    ("name", "rule", "kernel", "trap"),
    [
        ("without_a_rule", None, torch.square, traps.NO_SHARDING),
        ("pieces_of_what_is_whole", rows, lambda x: x * x.mean(), traps.WRONG_SHARDING),
        ("whole", lambda x: rows(x)[:1], torch.square, None),
        ("pieces", rows, torch.square, None),
    ],
)
def test_rules(name: str, rule: Any, kernel: Any, trap: Trap | None):
    outcome = told(DTENSOR, squares(name, rule, kernel))
    if trap is None:
        assert outcome.status is Status.WORKS, outcome
    else:
        assert (outcome.status, outcome.trap) == (Status.FAILS, trap.name), outcome
        assert outcome.remedy == trap.remedy


def test_gradients_are_compared():
    """The second operator is what the gradient is made of."""
    slope = operator("slope_by_the_mean", lambda x: 2 * x - x.mean() + x.mean(1, keepdim=True))
    register_sharding(slope)(rows)

    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * slope(ctx.saved_tensors[0])

    op = operator("gradient_of_pieces", torch.square, backward=backward)
    register_sharding(op)(rows)
    outcome = told(DTENSOR, op)
    assert (outcome.status, outcome.trap) == (Status.FAILS, traps.WRONG_SHARDING.name), outcome


def test_parameters_in_pieces():
    packed: dict[str, Any] = {}

    def packs(x: Tensor) -> Tensor:
        """Makes something of a weight once for each version."""
        if packed.get("of", lambda: None)() is not x or packed["version"] != x._version:
            packed.update(of=weakref.ref(x), version=x._version, weight=x.detach().clone())
        return x * packed["weight"]

    outcome = told(FSDP2, packs)
    assert (outcome.status, outcome.trap) == (Status.FAILS, traps.FULLY_SHARDED.name), outcome
    assert told(FSDP2, torch.square).status is Status.WORKS
    weight = torch.linspace(0.5, 1.5, 4)
    assert told(FSDP2, fusewheel.rms_norm, X, weight).status is Status.WORKS


def test_ends(monkeypatch: pytest.MonkeyPatch):
    """A process that dies, or never ends, is a finding."""

    def dies(x: Tensor) -> Tensor:
        if torch.distributed.is_initialized() and torch.distributed.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return x * x

    outcome = told(DTENSOR, dies)
    assert (outcome.status, outcome.trap) == (Status.FAILS, traps.CRASH.name)
    assert "SIGKILL" in outcome.reason
    monkeypatch.setattr(distributed, "SECONDS", 3.0)

    def waits(x: Tensor) -> Tensor:
        if torch.distributed.is_initialized():
            time.sleep(60)
        return x * x

    outcome = told(DTENSOR, waits)
    assert (outcome.status, outcome.trap) == (Status.FAILS, traps.HANG.name)


def test_in_a_group_already(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    outcome = told(DTENSOR, torch.square)
    assert outcome.reason == "in a group of processes already"

"""Leaving autograd out of a call, by what this torch has and by what another may have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fusewheel._torch.autograd as room
import pytest
import torch


def is_skipped() -> bool:
    key = torch._C.DispatchKey.AutogradFunctionality
    return bool(torch._C._dispatch_tls_is_dispatch_key_excluded(key))


@pytest.mark.parametrize("skip", [room.skip_autograd, room._Below])
def test_autograd_is_skipped_until_what_was_returned_is_deleted(skip: Callable[[], Any]):
    outer = skip()
    assert is_skipped()
    inner = skip()
    del inner
    assert is_skipped()
    del outer
    assert not is_skipped()


def test_a_block_that_works_only_from_when_it_is_entered(monkeypatch: pytest.MonkeyPatch):
    """As in other versions of torch, for which the object is entered and left."""
    steps: list[str] = []

    class Block:
        def __enter__(self) -> None:
            steps.append("entered")

        def __exit__(self, *error: object) -> None:
            steps.append("left")

    monkeypatch.setattr(room, "below_autograd", Block)
    assert not room._skips_at_once()
    below = room._Below()
    assert steps == ["entered"]
    del below
    assert steps == ["entered", "left"]


def test_a_function_is_applied_without_python_where_that_is_the_same():
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, factor: float) -> torch.Tensor:
            return x * factor

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
            return grad * 2, None

    x = torch.ones(3, requires_grad=True)
    (found,) = torch.autograd.grad(room.short_apply(Twice)(x, 2.0).sum(), x)
    assert torch.equal(found, torch.full((3,), 2.0))
    with pytest.raises(RuntimeError, match="setup_context"):
        torch.func.grad(lambda x: room.short_apply(Twice)(x, 2.0).sum())(x.detach())

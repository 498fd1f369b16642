"""Checkpointed parts with random numbers: the backward pass computes them again with the same."""

from __future__ import annotations

import functools
from typing import Any

import fusewheel
import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

assert fusewheel
Tensor = torch.Tensor


def _block(x: Tensor, w: Tensor) -> Tensor:
    return F.dropout(F.silu(x @ w) * x, 0.5)


def _nested(x: Tensor, w: Tensor) -> Tensor:
    first: Tensor = checkpoint(_block, x, w, use_reentrant=False)
    return F.dropout(first, 0.5) @ w


def _saves_products() -> Any:
    return create_selective_checkpoint_contexts([torch.ops.aten.mm.default])


PARTS: dict[str, Any] = {
    "plain": functools.partial(checkpoint, _block, use_reentrant=False),
    "reentrant": functools.partial(checkpoint, _block, use_reentrant=True),
    "nested": functools.partial(checkpoint, _nested, use_reentrant=False),
    "selective": functools.partial(
        checkpoint, _block, use_reentrant=False, context_fn=_saves_products
    ),
}


@pytest.mark.parametrize("name", PARTS)
def test_dropout_is_the_same_in_both_passes(name: str) -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        return PARTS[name](x, w) + PARTS[name](x + 1, w)

    compiled = torch.compile(f, backend="fusewheel", options={"inner": "none"})
    values = torch.randn(6, 8), torch.randn(8, 8)
    results = []
    for call in (f, compiled):
        x, w = (value.clone().requires_grad_() for value in values)
        torch.manual_seed(3)
        y = call(x, w)
        torch.rand(5)  # the state at the backward pass is another
        y.square().sum().backward()
        results.append((y, x.grad, w.grad, torch.rand(3)))
    torch.testing.assert_close(results[1], results[0])

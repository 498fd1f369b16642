"""A soft cap of the logits, which the loss takes over, and what resembles one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fusewheel
import pytest
import torch
import torch.nn.functional as F
from training import assert_step, wide

assert fusewheel
Tensor = torch.Tensor
CLASSES = 11
OPERATOR = torch.ops.fusewheel.cross_entropy.default


def _data(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    logits = 3 * torch.randn(2, 6, CLASSES)
    return logits.to(dtype).requires_grad_(), torch.randint(CLASSES, (2, 6))


def _flat(x: Tensor) -> Tensor:
    return x.view(-1, x.size(-1))


CAPS: dict[str, Callable[[Tensor], Tensor]] = {
    "divided": lambda x: torch.tanh(x / 5.0) * 5.0,
    "first": lambda x: 5 * (x / 5).tanh(),
    "in_float32": lambda x: 5.0 * torch.tanh(wide(x) / 5.0),
    "before_float32": lambda x: wide(torch.tanh(x / 5.0) * 5.0),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CAPS)
def test_soft_cap(compare: Any, name: str, dtype: torch.dtype) -> None:
    def loss(x: Tensor, t: Tensor) -> Tensor:
        return F.cross_entropy(_flat(CAPS[name](x)), t.view(-1))

    compiled, recorder = compare.compile(loss)
    assert_step(compiled, loss, *_data(dtype))
    assert recorder.report().counts() == {"cross_entropy": 1}
    (call,) = [node for node in compare.graphs[0].graph.nodes if node.target is OPERATOR]
    assert call.args[-2] == 5.0 and call.args[0].meta["example_value"].dtype == dtype


NO_CAPS: dict[str, Callable[[Tensor], Tensor]] = {
    "two_numbers": lambda x: torch.tanh(x / 5.0) * 6.0,
    "negative": lambda x: torch.tanh(x / -5.0) * -5.0,
    "one_tensor": lambda x: torch.tanh(x / x.detach().max()) * 5.0,
    "shifted": lambda x: torch.tanh((x + 1) / 5.0) * 5.0 + 1,
}


@pytest.mark.parametrize("name", NO_CAPS)
def test_no_soft_cap(compare: Any, name: str) -> None:
    def loss(x: Tensor, t: Tensor) -> Tensor:
        return F.cross_entropy(_flat(NO_CAPS[name](x)), t.view(-1))

    compiled, recorder = compare.compile(loss)
    assert_step(compiled, loss, *_data())
    assert recorder.report().counts() == {"cross_entropy": 1}
    (call,) = [node for node in compare.graphs[0].graph.nodes if node.target is OPERATOR]
    assert call.args[-2] == 0.0


def test_capped_logits_that_are_returned(compare: Any) -> None:
    """They are there already; the loss starts from them."""

    def loss(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.tanh(x / 5.0) * 5.0
        return F.cross_entropy(_flat(wide(y)), t.view(-1)), y

    compiled, recorder = compare.compile(loss)
    assert_step(compiled, loss, *_data(torch.bfloat16))
    assert recorder.report().counts() == {"cross_entropy": 1}
    (call,) = [node for node in compare.graphs[0].graph.nodes if node.target is OPERATOR]
    assert call.args[-2] == 0.0

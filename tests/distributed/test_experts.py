"""Experts that are spread over devices: the results of all devices add up to the mixture."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import fusewheel
import pytest
import torch
import torch.distributed as dist
from fusewheel.dispatch.operator import Make
from group import SIZE, Check
from oracle import assert_program_as_good_as_eager
from torch import Tensor

pytestmark = pytest.mark.long

TOKENS, CHOSEN, FEATURES, BETWEEN = 13, 3, 32, 24
EXPERTS = 2 * SIZE
NAME = "values and gradients"


def test_spread_experts(passed: Callable[[str], None]) -> None:
    passed(NAME)


def checks() -> Iterator[Check]:
    yield NAME, check_experts


def check_experts() -> None:
    make = Make(torch.float64, seed=91)
    x, grad = make(TOKENS, FEATURES), make(TOKENS, FEATURES)
    scores, indices = fusewheel.route(make(TOKENS, EXPERTS), CHOSEN)
    layers = (
        make(EXPERTS, 2 * BETWEEN, FEATURES, scale=0.3),
        make(EXPERTS, FEATURES, BETWEEN, scale=0.3),
    )
    whole = _step(x, indices, scores, layers, grad)
    first = 2 * dist.get_rank()
    own = slice(first, first + 2)
    mine = indices - first
    mine = torch.where((mine >= 0) & (mine < 2), mine, -1)
    part = _step(x, mine, scores, tuple(layer[own] for layer in layers), grad)
    for i, tensor in enumerate(part[:3]):  # the result, and the gradients of x and of the scores
        dist.all_reduce(tensor)
        assert_program_as_good_as_eager(tensor, whole[i], whole[i], f"result {i}")
    for i, tensor in enumerate(part[3:], 3):
        assert_program_as_good_as_eager(tensor, whole[i][own], whole[i][own], f"result {i}")


def _step(
    x: Tensor, indices: Tensor, scores: Tensor, layers: tuple[Tensor, ...], grad: Tensor
) -> list[Tensor]:
    """The result, and the gradients of x, of the scores and of the layers."""
    leaves = [t.detach().clone().requires_grad_() for t in (x, scores, *layers)]
    y = fusewheel.experts(leaves[0], indices, *leaves[1:])
    return [y.detach(), *torch.autograd.grad(y, leaves, grad)]

"""Gate and up in one tensor: read where they lie, and one gradient written in place."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import fusewheel
import pytest
import torch
from fusewheel.dispatch.operator import Make
from fusewheel.ops.activation._packed import halves
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

OPERATORS = {
    "silu": (fusewheel.silu_mul, fusewheel.silu_mul_packed),
    "gelu": (fusewheel.gelu_mul, fusewheel.gelu_mul_packed),
    "gelu tanh": tuple(
        functools.partial(function, approximate="tanh")
        for function in (fusewheel.gelu_mul, fusewheel.gelu_mul_packed)
    ),
}

pytestmark = pytest.mark.parametrize("name", OPERATORS)


def allocated(function: Callable[..., Any], *arguments: Any, **words: Any) -> int:
    """Bytes of all tensors that a call makes, whether they live on or not."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        function(*arguments, **words)
    return sum(max(event.self_cpu_memory_usage, 0) for event in profiler.events())


def test_halves_are_read_without_a_copy(name: str):
    function, _ = OPERATORS[name]
    packed = torch.randn(5, 2 * 507)
    assert allocated(function, *halves(packed)) == 5 * 507 * 4
    gate, up = (half.detach().requires_grad_() for half in halves(packed))
    grad = torch.randn(5, 507)
    y = function(gate, up)
    assert allocated(torch.autograd.grad, y, (gate, up), grad) == 2 * 5 * 507 * 4


def test_one_gradient_is_written_and_nothing_else(name: str):
    _, function = OPERATORS[name]
    packed = torch.randn(5, 2 * 507, requires_grad=True)
    assert allocated(function, packed.detach()) == 5 * 507 * 4
    grad = torch.randn(5, 507)
    y = function(packed)
    assert allocated(torch.autograd.grad, y, packed, grad) == 2 * 5 * 507 * 4


def test_rows_further_apart_are_read_without_a_copy(name: str):
    _, function = OPERATORS[name]
    qkv_gate_up = torch.randn(2, 5, 3 * 64 + 2 * 33)
    packed = qkv_gate_up[..., 3 * 64 :]
    assert allocated(function, packed) == 2 * 5 * 33 * 4
    assert torch.equal(function(packed), function(packed.contiguous()))


@pytest.mark.parametrize("size", [1, 8, 507])
def test_has_the_bits_of_the_halves_apart(name: str, dtype: torch.dtype, size: int):
    apart, together = OPERATORS[name]
    results: list[tuple[Tensor, ...]] = []
    for function in (lambda packed: apart(*packed.chunk(2, dim=-1)), together):
        make = Make(dtype)
        packed = make(3, 7, 2 * size).requires_grad_()
        y = function(packed)
        results.append((y, *torch.autograd.grad(y, packed, make(3, 7, size))))
    for got, want in zip(*results, strict=True):
        assert got.is_contiguous() and torch.equal(got, want)

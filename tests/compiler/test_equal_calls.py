"""Of equal calls on example values the first one runs; the others have results of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fusewheel._torch.fx import Fakes, storage_key
from fusewheel.compiler.ir.equal_calls import EqualCalls
from torch import Tensor


class Counted:
    """A function that notes how often it ran."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.count = function, 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.count += 1
        return self.function(*args, **kwargs)


@pytest.fixture
def fakes() -> Any:
    made = Fakes()
    with torch.no_grad(), made.mode:
        yield made


def twice(function: Callable[..., Any], first: tuple[Any, ...], second: tuple[Any, ...]) -> int:
    """How often a function runs for two calls; the results of the second must be right."""
    counted, calls = Counted(function), EqualCalls()
    calls(counted, first, {}, None)
    found, expected = calls(counted, second, {}, None), function(*second)
    runs = counted.count
    pair = (found,), (expected,)
    for one, other in zip(*(pair if isinstance(found, Tensor) else (found, expected)), strict=True):
        assert one.dtype == other.dtype and one.stride() == other.stride()
        assert [str(size) for size in one.shape] == [str(size) for size in other.shape]
    return runs


def product(x: Tensor, y: Tensor) -> Tensor:
    return (x @ y).transpose(0, 1)


def test_equal_calls_run_once(fakes: Fakes) -> None:
    n = fakes.size("n", 5)
    first, second = ((torch.empty(n, 4), torch.empty(4, 3)) for _ in range(2))
    assert twice(product, first, second) == 1
    assert twice(lambda x, y: tuple(torch.topk(x @ y, 2)), first, second) == 1


def test_results_are_tensors_of_their_own(fakes: Fakes) -> None:
    counted, calls = Counted(torch.relu), EqualCalls()
    results = []
    for _ in range(4):
        results.append(calls(counted, (torch.empty(3, 2),), {}, None))
        results[-1].unsqueeze_(0)  # one that changes says nothing about the next one
    assert counted.count == 1
    assert len({storage_key(result) for result in results}) == 4
    assert [tuple(result.shape) for result in results] == [(1, 3, 2)] * 4


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (lambda: (torch.empty(3, 3), 1), lambda: (torch.empty(3, 3), 1.0)),
        (lambda: (torch.empty(3, 3), 1), lambda: (torch.empty(3, 3), True)),
        (lambda: (torch.empty(3, 3), 1), lambda: (torch.empty(3, 4), 1)),
        (lambda: (torch.empty(3, 3), 1), lambda: (torch.empty(3, 3).t(), 1)),
        (lambda: (torch.empty(3, 3), 1), lambda: (torch.empty(3, 3).bfloat16(), 1)),
        (lambda: (torch.empty(3, 3), 1), lambda: (torch.empty(3, 3, requires_grad=True), 1)),
    ],
)
def test_other_arguments_are_other_calls(fakes: Fakes, first: Any, second: Any) -> None:
    assert twice(torch.add, first(), second()) == 2


def test_arguments_that_share_memory_are_others(fakes: Fakes) -> None:
    x, y = torch.empty(3), torch.empty(3)
    assert twice(torch.add, (x, y), (x, x)) == 2


def test_modes_make_other_calls(fakes: Fakes) -> None:
    counted, calls, x = Counted(torch.relu), EqualCalls(), torch.empty(3)
    for modes in ("one", "another"):
        calls(counted, (x,), {}, modes)
    assert counted.count == 2


@pytest.mark.parametrize("function", [lambda x: x.view(-1), torch.nonzero, lambda x: x.add_(1)])
def test_what_is_not_new_runs_each_time(fakes: Fakes, function: Any) -> None:
    """A view belongs to its argument, and a size that numbers decide to one call."""
    counted, calls = Counted(function), EqualCalls()
    for _ in range(3):
        calls(counted, (torch.empty(3, 2),), {}, None)
    assert counted.count == 3

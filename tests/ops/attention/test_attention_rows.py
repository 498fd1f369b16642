"""What no kernel computes of attention: some queries at a time are as good as all of them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import fusewheel
import pytest
import torch
from fusewheel.dispatch.autograd import reference_gradients
from fusewheel.dispatch.operator import Make
from fusewheel.ops.attention import _attention_formula as formula
from fusewheel.ops.attention import _attention_rows as by_rows
from fusewheel.ops.attention import _varlen_formula as varlen
from ops.attention.inputs import inputs, leaves
from oracle import assert_program_as_good_as_eager, slow, to_dtype
from torch import Tensor

OPTIONS = {
    "plain": (-1, -1, 0.4, 0.0),
    "causal": (-1, 0, 0.4, 0.0),
    "window, cap": (3, 2, 0.4, 2.0),
    "left": (2, -1, 0.4, 0.0),
}
BIASES = ((2, 4, 11, 17), (1, 4, 1, 17), (2, 1, 11, 1), (1, 1, 1, 1))
LENGTHS = (512, 1024)


@pytest.fixture
def two_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two queries at a time."""
    monkeypatch.setattr(by_rows, "SCORES", 1)
    monkeypatch.setattr(by_rows, "FEWEST", 2)


def tensors(
    dtype: torch.dtype = torch.float64, bias: tuple[int, ...] | None = BIASES[0]
) -> list[Any]:
    """q, k, v, sinks and a bias of 11 queries and 17 keys."""
    sizes = {"batch": 2, "heads": 4, "kv_heads": 2, "size": 6, "value_size": 3}
    make = Make(dtype, seed=5)
    more = make(4), None if bias is None else make(*bias)
    return [*inputs(11, 17, **sizes, dtype=dtype), *more]


@pytest.mark.usefixtures("two_queries")
@pytest.mark.parametrize("how", OPTIONS)
@pytest.mark.parametrize("shape", BIASES)
def test_the_gradient_of_a_bias_is_that_of_the_formula(how: str, shape: tuple[int, ...]):
    given = leaves(*tensors(bias=shape))
    seeds = torch.randn(2, 4, 11, 3).double(), torch.randn(2, 4, 11).double()
    found = []
    for function in (torch.ops.fusewheel.attention, formula.attention):
        results = function(*given, *OPTIONS[how])
        (slope,) = torch.autograd.grad(results, given[-1], seeds, create_graph=True)
        again = torch.autograd.grad(slope.square().sum(), given)
        found.append((slope, *again))
    torch.testing.assert_close(*found)


@pytest.mark.usefixtures("two_queries")
@pytest.mark.parametrize("how", OPTIONS)
def test_second_derivatives_are_those_of_the_formula(how: str):
    given = leaves(*tensors())
    seeds = [torch.randn(2, 4, 11, 3).double(), torch.randn(2, 4, 11).double()]
    found = []
    for function in (torch.ops.fusewheel.attention, formula.attention):
        slopes = leaves(*seeds)
        results = function(*given, *OPTIONS[how])
        first = torch.autograd.grad(results, given, slopes, create_graph=True)
        loss = sum((t.sin() * (i + 1)).sum() for i, t in enumerate(first))
        found.append(torch.autograd.grad(loss, [*given, *slopes]))
    torch.testing.assert_close(*found)


def packed(dtype: torch.dtype = torch.float64) -> tuple[list[Tensor], tuple[Tensor, Tensor]]:
    """q, k, v and sinks of three sequences, one of them without keys."""
    make = Make(dtype, seed=6)
    rows = make(20, 4, 6), make(23, 2, 6), make(23, 2, 3), make(4)
    return list(rows), (torch.tensor([0, 5, 7, 20]), torch.tensor([0, 9, 9, 23]))


@pytest.mark.usefixtures("two_queries")
@pytest.mark.parametrize("how", OPTIONS)
def test_second_derivatives_of_packed_sequences_are_those_of_the_formula(how: str):
    rows, bounds = packed()
    given = leaves(*rows)
    found = []
    for function in (torch.ops.fusewheel.attention_varlen, varlen.attention_varlen):
        results = function(*given[:3], *bounds, given[3], *OPTIONS[how])
        results = results[0], results[1].clamp(min=-9.0)
        first = torch.autograd.grad([r.sin().sum() for r in results], given, create_graph=True)
        found.append(torch.autograd.grad(sum(t.sin().sum() for t in first), given))
    torch.testing.assert_close(*found)


@pytest.mark.usefixtures("two_queries")
def test_gradients_are_as_good_as_all_at_once(dtype: torch.dtype):
    make = Make(dtype, seed=7)
    given = tuple(tensors(dtype))
    results = formula.attention(*given, *OPTIONS["causal"])
    grads = make(2, 4, 11, 3), make(2, 4, 11).to(results[1].dtype)
    of_results = make(2, 4, 11, 6), make(2, 2, 17, 6), make(2, 2, 17, 3), make(4)

    def bias_by_formula(grads: Any, arguments: Any) -> Tensor | None:
        only_bias = [i == 4 for i in range(9)]
        return reference_gradients(formula.attention, only_bias, grads, arguments)[4]

    def twice_by_formula(*arguments: Any) -> list[Tensor | None]:
        return reference_gradients(formula.attention_backward, *arguments)

    def found(of_bias: Any, of_backward: Any, dtype: torch.dtype) -> list[Tensor]:
        first, second, all_given = (
            to_dtype(t, dtype) if dtype == torch.float64 else t
            for t in (grads, of_results, (*given, *results, *OPTIONS["causal"]))
        )
        bias = of_bias(first, (*all_given[:5], *all_given[7:]))
        needs = [True] * 9 + [False] * 4
        return [bias, *of_backward(needs, second, (*first, *all_given))[:9]]

    with torch.no_grad():
        got = found(by_rows.bias_gradient, by_rows.backward_gradients, dtype)
        eager = found(bias_by_formula, twice_by_formula, dtype)
        exact = found(bias_by_formula, twice_by_formula, torch.float64)
    for i, (a, b, c) in enumerate(zip(got, eager, exact, strict=True)):
        assert_program_as_good_as_eager(a, b, c, str(i))


@pytest.mark.usefixtures("two_queries")
def test_dropout_drops_the_same_in_the_backward():
    q, k, v, sinks, bias = leaves(*tensors())
    options: dict[str, Any] = {"sinks": sinks, "bias": bias, "dropout_p": 0.4, "causal": True}

    def drop(v: Tensor) -> Tensor:
        torch.manual_seed(3)
        return fusewheel.attention(q, k, v, **options)

    kept = drop(torch.eye(17).double().expand(2, 2, 17, 17))
    whole = fusewheel.attention(
        q, k, torch.eye(17).double().expand(2, 2, 17, 17), **options | {"dropout_p": 0.0}
    )
    seen = (kept > 0).double()
    assert 0.4 < float(seen.sum() / (whole > 0).sum()) < 0.8
    torch.testing.assert_close(kept, whole * seen / 0.6)
    out = drop(v)
    torch.testing.assert_close(out, kept @ v.repeat_interleave(2, 1))
    grad = torch.randn_like(out)
    found = torch.autograd.grad(out, (q, k, v, sinks, bias), grad)
    # With what was dropped as a factor of the shares.
    shares = whole * seen / 0.6
    expected = torch.autograd.grad(shares @ v.repeat_interleave(2, 1), (q, k, v, sinks, bias), grad)
    torch.testing.assert_close(found, expected)


@pytest.mark.usefixtures("two_queries")
def test_derivatives_with_dropout():
    q, k, v = inputs(3, 3, heads=1, size=2, value_size=1)
    given = leaves(q, k, v, Make(torch.float64)(1))

    def function(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor) -> Any:
        torch.manual_seed(8)
        return fusewheel.attention(
            q, k, v, window=(2, 1), sinks=sinks, dropout_p=0.3, return_lse=True
        )

    assert torch.autograd.gradcheck(function, given)
    assert torch.autograd.gradgradcheck(function, given)


def first_order(given: list[Tensor], **options: Any) -> None:
    torch.autograd.grad(fusewheel.attention(*given[:3], **options).sum(), given)


def twice(given: list[Tensor], out: Tensor) -> None:
    first = torch.autograd.grad(out.square().sum(), given, create_graph=True)
    torch.autograd.grad(sum(t.square().sum() for t in first), given)


def of_dropout(length: int) -> None:
    first_order(leaves(*inputs(length, length, heads=1, size=8)), dropout_p=0.1, causal=True)


def of_bias(length: int) -> None:
    given = leaves(*inputs(length, length, heads=1, size=8), torch.randn(1, 1, 1, length).double())
    first_order(given, bias=given[3])


def of_bias_twice(length: int) -> None:
    given = leaves(*inputs(length, length, heads=1, size=8), torch.randn(1, 1, 1, length).double())
    twice(given, fusewheel.attention(*given[:3], bias=given[3]))


def of_second(length: int) -> None:
    given = leaves(*inputs(length, length, heads=1, size=8))
    twice(given, fusewheel.attention(*given, causal=True))


def of_packed(length: int) -> None:
    given = leaves(*(t[0].transpose(0, 1) for t in inputs(length, length, heads=1, size=8)))
    bounds = torch.tensor([0, length])
    twice(given, fusewheel.attention_varlen(*given, bounds, bounds, causal=True))


def peak(step: Callable[[int], None], length: int) -> int:
    """Bytes that PyTorch's allocator had given out at their peak."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(profile_memory=True, activities=activities) as found:
        step(length)
    assert found.profiler is not None
    events = [e for e in found.profiler.kineto_results.events() if e.name() == "[memory]"]
    return max(accumulate(e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())))


@pytest.mark.skipif(slow(), reason="millions of scores, on kernels that are emulated")
@pytest.mark.parametrize("step", [of_dropout, of_bias, of_bias_twice, of_second, of_packed])
def test_memory_is_linear(step: Callable[[int], None], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(by_rows, "SCORES", 1)
    monkeypatch.setattr(by_rows, "FEWEST", 32)
    half, whole = (peak(step, length) for length in LENGTHS)
    assert whole < 2.2 * half
    assert whole < 8 * LENGTHS[1] ** 2, "more than one matrix of scores"

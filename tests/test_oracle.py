"""The judge of numbers: wrong kernels are found, honest ones pass with any numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from contracts import before_bias
from neighbours import assert_call_as_good_as_eager, compute
from nightly import NIGHTLY
from oracle import (
    assert_as_good_as_call,
    assert_as_good_as_eager,
    assert_vector_as_good_as_eager,
    same,
)
from torch import Tensor
from torch.nn import functional as F

Function = Callable[..., Tensor]
NARROW = (torch.float32, torch.bfloat16, torch.float16)
ROUNDS = 20


def norm(x: Tensor) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()


def softmax(x: Tensor) -> Tensor:
    return F.softmax(x, -1)


def judge(own: Function, reference: Function, *arguments: Any) -> None:
    """Both ways: with the three results, and with the functions."""
    exact = reference(*(a.double() if isinstance(a, Tensor) else a for a in arguments))
    assert_call_as_good_as_eager(compute, own, reference, arguments, "output")
    assert_as_good_as_eager(own(*arguments), reference(*arguments), exact, "output")


def refused(own: Function, reference: Function, *arguments: Any) -> None:
    """Each way refuses it."""
    exact = reference(*(a.double() if isinstance(a, Tensor) else a for a in arguments))
    with pytest.raises(AssertionError, match="output"):
        assert_call_as_good_as_eager(compute, own, reference, arguments, "output")
    with pytest.raises(AssertionError, match="output"):
        assert_as_good_as_eager(own(*arguments), reference(*arguments), exact, "output")


def after(reference: Function, change: Callable[[Tensor], Tensor]) -> Function:
    """`reference`, its result changed."""
    return lambda *arguments: change(reference(*arguments))


# A function, and numbers for it whose results are of many magnitudes.
FUNCTIONS: dict[str, tuple[Function, Callable[[], Tensor]]] = {
    "exp": (torch.exp, lambda: torch.empty(4000).uniform_(-15, 10)),
    "silu": (F.silu, lambda: torch.randn(4000) * 5),
    "gelu": (F.gelu, lambda: torch.randn(4000) * 2),
    "softmax": (softmax, lambda: torch.randn(40, 100) * 3),
    "norm": (norm, lambda: torch.randn(40, 100)),
}


@pytest.fixture(params=FUNCTIONS)
def function(request: pytest.FixtureRequest) -> tuple[Function, Callable[[], Tensor]]:
    return FUNCTIONS[request.param]


@pytest.fixture(
    params=[
        *(torch.float32, torch.bfloat16),
        pytest.param(torch.float16, marks=NIGHTLY),
    ],
    ids=str,
)
def narrow(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


def test_zero_for_small_results_is_found(function, narrow: torch.dtype):
    reference, make = function
    x = make().to(narrow)
    limit = reference(x).abs().double().quantile(0.02).item()
    refused(after(reference, lambda y: torch.where(y.abs() <= limit, 0, y)), reference, x)


def test_another_sign_of_small_results_is_found(function, narrow: torch.dtype):
    reference, make = function
    x = make().to(narrow)
    limit = reference(x).abs().double().quantile(0.02).item()
    refused(after(reference, lambda y: torch.where(y.abs() <= limit, -y, y)), reference, x)


def test_eager_itself_is_as_good(function, narrow: torch.dtype):
    reference, make = function
    for _ in range(ROUNDS):
        judge(reference, reference, make().to(narrow))


def test_a_result_rounded_once_is_as_good(function, narrow: torch.dtype):
    reference, make = function

    def own(x: Tensor) -> Tensor:
        return reference(x.double()).to(x.dtype)

    for _ in range(ROUNDS):
        judge(own, reference, make().to(narrow))


@pytest.mark.parametrize("exponent", [-12, -3, 0, 5])
def test_a_small_relative_error_in_one_binade_is_found(exponent: int):
    def own(y: Tensor) -> Tensor:
        inside = y.frexp().exponent == exponent
        return torch.where(inside, y * 1.001, y)

    x = torch.empty(4000).uniform_(-15, 10)
    refused(after(torch.exp, own), torch.exp, x)


def test_denormal_numbers_set_to_zero_are_found(narrow: torch.dtype):
    tiny = torch.finfo(narrow).smallest_normal
    x = (torch.rand(4000) * 4 * tiny).to(narrow)
    reference = torch.neg
    refused(after(reference, lambda y: torch.where(y.abs() < tiny, 0, y)), reference, x)


@pytest.mark.parametrize("special", [math.inf, -math.inf, math.nan, 0.0])
def test_what_should_be_no_number_is_found(narrow: torch.dtype, special: float):
    x = torch.randn(100).to(narrow)
    x[7], x[8], x[9], x[10] = math.inf, -math.inf, math.nan, 1.0

    def own(given: Tensor) -> Tensor:
        got = -given
        got[at] = special
        return got

    for at in (7, 8, 9, 10):
        if not same(-x[at], torch.tensor(special)):
            refused(own, torch.neg, x)


@pytest.mark.parametrize("binades", [1, 2, 3])
def test_few_results_of_a_magnitude_are_judged_with_larger_ones(binades: int):
    """Sums that are small by chance: eager's five have no error, and their neighbours do."""
    small, few, many = (
        torch.full((100,), 1e-4),
        torch.full((5,), 1.5 / 2**binades),
        torch.ones(1000),
    )
    exact = torch.cat((small, few, 1.5 * many)).double()
    eager = exact.float()
    eager[105:] += 1e-5
    is_few = (exact > 1e-3) & (exact < 1)

    def own(off: float) -> Tensor:
        return torch.where(is_few, exact + off, exact).float()

    if binades <= 2:
        assert_as_good_as_eager(own(1.9e-5), eager, exact)
    wrong = [own(2.1e-5), torch.where(is_few, 0.0, exact).float(), exact.float() + 1e-6]
    for got in wrong if binades <= 2 else [own(1.9e-5), *wrong]:
        with pytest.raises(AssertionError):
            assert_as_good_as_eager(got, eager, exact)


def product(x: Tensor, weight: Tensor) -> Tensor:
    return (x.float() @ weight.float().T).to(x.dtype) if x.dtype != torch.float64 else x @ weight.T


def in_turn(x: Tensor, weight: Tensor) -> Tensor:
    """One term after another, in float32."""
    sums = torch.zeros(len(x), len(weight))
    for k in range(x.shape[1]):
        sums = torch.addcmul(sums, x[:, k, None].float(), weight[:, k].float())
    return sums.to(x.dtype)


def in_blocks(x: Tensor, weight: Tensor) -> Tensor:
    """Sixteen sums of every sixteenth term, in float32."""
    terms = (x.float()[:, None] * weight.float()).unflatten(-1, (-1, 16))
    return terms.sum(-2).sum(-1).to(x.dtype)


@pytest.mark.parametrize("own", [in_turn, in_blocks])
def test_another_order_of_a_sum_is_as_good(own: Function, narrow: torch.dtype):
    for rows in (1, 3, 20) * (ROUNDS // 3):
        given = torch.randn(rows, 64).to(narrow), torch.randn(33, 64).to(narrow)
        assert_call_as_good_as_eager(compute, own, product, given, "output")


def test_a_sum_in_half_precision_is_found():
    def own(x: Tensor, weight: Tensor) -> Tensor:
        sums = torch.zeros(len(x), len(weight), dtype=x.dtype)
        for k in range(x.shape[1]):
            sums += x[:, k, None] * weight[:, k]
        return sums

    refused(own, product, torch.randn(20, 64).bfloat16(), torch.randn(33, 64).bfloat16())


def test_a_fused_multiplication_and_addition_is_as_good():
    def rotated(x: Tensor, y: Tensor, angle: Tensor) -> Tensor:
        return x * angle.cos() - y * angle.sin()

    def own(x: Tensor, y: Tensor, angle: Tensor) -> Tensor:
        return torch.addcmul(x * angle.cos(), y, -angle.sin())

    for count in (1, 7, 600) * (ROUNDS // 3):
        given = tuple(torch.randn(count) for _ in range(3))
        assert_call_as_good_as_eager(compute, own, rotated, given, "output")


def test_a_bias_that_is_added_to_a_rounded_sum_is_as_good_by_contract():
    """Eager may round once: no neighbour shows what is lost where sum and bias cancel."""

    def layer(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.linear(x.double(), weight.double(), bias.double()).to(x.dtype)

    def own(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.linear(x, weight) + bias

    def in_half(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.linear(x, weight).bfloat16() + bias

    for turn in range(ROUNDS):
        given = torch.randn(60, 1), torch.randn(60, 1), torch.randn(60)
        assert_call_as_good_as_eager(compute, own, layer, given, "output", contract=before_bias)
        if turn % 5:
            continue  # what is refused is judged by many more neighbours
        with pytest.raises(AssertionError, match="output"):
            assert_call_as_good_as_eager(
                compute, in_half, layer, given, "output", contract=before_bias
            )


def test_a_float32_mean_of_half_numbers_is_as_good_in_another_order():
    """Most of these sums are exact, so that eager's errors are rare, and elsewhere than others."""

    def mean(x: Tensor) -> Tensor:
        return x.mean(-1, dtype=torch.promote_types(x.dtype, torch.float32))

    def own(x: Tensor) -> Tensor:
        return x.float().cumsum(-1)[:, -1] / x.shape[-1]

    def in_half(x: Tensor) -> Tensor:
        return mean(x).to(x.dtype).float()

    for _ in range(ROUNDS):
        x = torch.randn(255, 123).bfloat16()
        assert_call_as_good_as_eager(compute, own, mean, (x,), "output")
    with pytest.raises(AssertionError, match="output"):
        assert_call_as_good_as_eager(compute, in_half, mean, (x,), "output")


@pytest.mark.parametrize("fault", [0.0, 1e-5])
def test_what_a_call_gives_is_judged_by_the_call_itself(fault: float):
    """A module has a twin in float64, and a function is given such arguments."""
    layer, x = torch.nn.Linear(64, 64), torch.randn(8, 64)
    for call, given in ((layer, (x,)), (torch.nn.functional.linear, (x, layer.weight))):
        got = call(*given).detach() * (1 + fault)
        wrong = pytest.raises(AssertionError, match="result 0: got") if fault else nullcontext()
        with torch.no_grad(), wrong:
            assert_as_good_as_call(got, call, *given)
    assert layer.weight.dtype == torch.float32


@pytest.mark.parametrize("times", [1.9, 2.1])
def test_a_vector_is_judged_by_its_length(times: float):
    """Where its errors are is free, and one of them may be more than twice eager's largest."""
    exact = torch.randn(50, dtype=torch.float64)
    off = torch.full((50,), 1e-3, dtype=torch.float64)
    got = exact.clone()
    got[0] += times * off.norm()
    wrong = pytest.raises(AssertionError, match="gradients: ") if times > 2 else nullcontext()
    with wrong:
        assert_vector_as_good_as_eager(got, exact + off, exact, "gradients")

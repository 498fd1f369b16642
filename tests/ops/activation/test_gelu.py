import math

import fusewheel
import mpmath
import pytest
import torch
from fuzz.draw import Draw
from oracle import UNITS_OF_FLOAT64, assert_as_good_as_eager, emulated

FORMS = ("none", "tanh")
OPERATORS = {o.name: o for o in fusewheel.ops.operators()}


@pytest.mark.parametrize("form", FORMS)
def test_many_random_values_and_their_slopes(form: str):
    for scale in (1e-3, 1.0, 5.0, 1e3):
        x = torch.randn(1_000_000) * scale
        results = []
        for function in (fusewheel.gelu, torch.nn.functional.gelu):
            leaf = x.clone().requires_grad_()
            y = function(leaf, approximate=form)
            results.append((y.detach(), *torch.autograd.grad(y.sum(), leaf)))
        # In float64 PyTorch's own has no digits left far out on the left.
        wide, tanh = x.double(), form == "tanh"
        value, slope = (OPERATORS[name].reference for name in ("gelu", "gelu_backward"))
        results.append((value(wide, tanh), slope(torch.ones_like(wide), wide, tanh)))
        for what, triple in zip(("value", "slope"), zip(*results, strict=True), strict=True):
            assert_as_good_as_eager(*triple, what=f"{what}, scale {scale}")


@pytest.mark.parametrize("form", FORMS)
def test_specials(form: str):
    x = torch.tensor([math.inf, math.nan, 0.0, -0.0, 1e-45, -1e-45, 1e-39, 3e38, -3e38])
    got = fusewheel.gelu(x, form)
    want = torch.tensor([math.inf, math.nan, 0.0, -0.0, 0.0, -0.0, 5e-40, 3e38, -0.0])
    eager, exact = (torch.nn.functional.gelu(t, approximate=form) for t in (x, x.double()))
    assert_as_good_as_eager(got, eager, exact)
    assert torch.equal(got.signbit(), want.signbit())


@pytest.mark.parametrize("form", FORMS)
def test_far_out_the_slope_is_zero_or_one(form: str):
    x = torch.tensor([-math.inf, -3e38, -1e20, -1e4, 1e4, 1e20, 3e38, math.inf])
    x.requires_grad_()
    got = torch.autograd.grad(fusewheel.gelu(x, form).sum(), x)[0]
    torch.testing.assert_close(got, torch.tensor([0.0] * 4 + [1.0] * 4))


@pytest.mark.parametrize("form", FORMS)
def test_slopes_are_right_on_their_own_far_out_on_the_left(form: str):
    # A few numbers close together: beside a slope near 1 no error of one near 0 would count.
    # (CUDA's by tanh ends with -10, where it is 1e-36.)
    x = torch.linspace(-10 if emulated() else -15, -2, 650 * 260)
    own, eager = OPERATORS["gelu_backward"].overload, OPERATORS["gelu_backward"].reference
    for part in x.split(650):
        got, base = (f(torch.ones_like(part), part, form == "tanh") for f in (own, eager))
        exact = eager(torch.ones_like(part).double(), part.double(), form == "tanh")
        assert_as_good_as_eager(got, base, exact, what=f"slopes around {part[0]}")


def assert_digits(got: torch.Tensor, exact: torch.Tensor, x: torch.Tensor) -> None:
    """Each element by itself: exp(-x^2 / 2) has x^2 times the relative error of x."""
    units = UNITS_OF_FLOAT64 * torch.finfo(torch.float64).eps * (1 + x.square())
    assert ((got - exact).abs() <= units * exact.abs()).all()


@pytest.mark.parametrize("form", FORMS)
def test_float64_keeps_its_digits_on_the_left_in_the_reference_too(form: str):
    x = torch.linspace(-12, -1, 1000, dtype=torch.float64)
    exact = OPERATORS["gelu"].reference(x, form == "tanh")
    assert_digits(fusewheel.gelu(x, form), exact, x)


@pytest.mark.parametrize("form", FORMS)
def test_the_reference_in_float64_is_the_formula(form: str):
    """It judges all kernels, so it is judged by the formula in 600 digits."""

    def formula(t):
        if form == "none":
            return t / 2 * mpmath.erfc(-t / mpmath.sqrt(2))
        inner = mpmath.sqrt(2 / mpmath.pi) * (t + mpmath.mpf("0.044715") * t**3)
        return t / 2 * (1 + mpmath.tanh(inner))

    # Not where the slope crosses zero: there no number of digits is right.
    x = torch.empty(2, 25, dtype=torch.float64).uniform_(0, 1)
    x = torch.cat((-14 + 13 * x[0], -0.5 + 6.5 * x[1]))
    value = OPERATORS["gelu"].reference(x, form == "tanh")
    slope = OPERATORS["gelu_backward"].reference(torch.ones_like(x), x, form == "tanh")
    with mpmath.workdps(600):
        numbers = [mpmath.mpf(number) for number in x.tolist()]
        values = torch.tensor([float(formula(t)) for t in numbers], dtype=x.dtype)
        slopes = torch.tensor([float(mpmath.diff(formula, t)) for t in numbers], dtype=x.dtype)
    assert_digits(value, values, x)
    assert_digits(slope, slopes, x)


def test_positive_values_within_three_units_in_the_last_place():
    x = torch.empty(2_000_000).uniform_(2.0**-20, 6.0)
    for form in FORMS:
        exact = torch.nn.functional.gelu(x.double(), approximate=form)
        spacing = torch.exp2(torch.floor(torch.log2(exact))) * 2.0**-23
        assert ((fusewheel.gelu(x, form).double() - exact).abs() / spacing).max() < 3


def test_unknown_form_is_refused():
    with pytest.raises(ValueError, match=r"approximate must be 'none' or 'tanh', got 'erf'"):
        fusewheel.gelu(torch.ones(4), "erf")


def any_arguments(d: Draw):
    return d.tensor(*d.shape()), d.flag()


def any_backward_arguments(d: Draw):
    return *(d.tensor(*shape) for shape in d.broadcast(2)), d.flag()


FUZZ = {"gelu": any_arguments, "gelu_backward": any_backward_arguments}

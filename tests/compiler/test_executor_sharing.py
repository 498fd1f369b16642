"""``inner="none"``: what need not run is left out, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fusewheel
import pytest
import torch
import torch.nn.functional as F
from executed import count, steps

assert fusewheel
Tensor = torch.Tensor


def test_equal_values_are_computed_once() -> None:
    def f(x: Tensor) -> Tensor:
        for _ in range(3):
            x = x + torch.cos(torch.arange(4.0) + x.shape[0]) + x.detach().mean().cos()
        return x

    lines = steps(f, torch.randn(5, 4))
    assert count(lines, "arange") == 0 and count(lines, "cos") == 3
    # Of a size that is not known the position is no constant, but still one value.
    assert count(steps(f, torch.randn(5, 4), dynamic=True), "cos") == 4


def test_different_values_are_not_shared() -> None:
    """1, 1.0 and True are equal and hash alike."""

    def f(x: Tensor) -> list[Tensor]:
        return [torch.full((2,), value) + x for value in (1, 1.0, True, 0.0, -0.0)]

    steps(f, torch.zeros(2, dtype=torch.int64))
    results = torch.compile(f, backend="fusewheel", options={"inner": "none"})(
        torch.zeros(2).long()
    )
    assert [r.dtype for r in results] == [r.dtype for r in f(torch.zeros(2).long())]


def test_gradients_are_summed_as_in_eager() -> None:
    """A value with a gradient is not shared."""
    lines = steps(lambda x, w: x * w.cos() + w.cos(), torch.randn(3), torch.randn(3))
    assert count(lines, "cos") == 1
    lines = steps(
        lambda x, w: x * w.cos() + w.cos(), torch.randn(3), torch.nn.Parameter(torch.ones(3))
    )
    assert count(lines, "cos") == 2


RANDOM: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout": lambda x: F.dropout(torch.ones(64), 0.5) * x,
    "rand": lambda x: torch.rand(64) * x,
    "randn_like": lambda x: torch.randn_like(x) * x,
    "bernoulli": lambda x: torch.ones(64).bernoulli(0.5) * x,
    "attention": lambda x: F.scaled_dot_product_attention(*[x.view(1, 8, 8)] * 3, dropout_p=0.5),
}


@pytest.mark.parametrize("case", RANDOM)
def test_random_numbers_are_drawn_anew(case: str) -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        draw = RANDOM[case]
        draw(x)  # unused, but it moves the generator on
        return draw(x) + 0, draw(x) + 0

    call = torch.compile(f, backend="fusewheel", options={"inner": "none"})
    x = torch.rand(64) + 1
    torch.manual_seed(3)
    first, second = call(x)
    again, _ = call(x)
    assert not torch.equal(first, second) and not torch.equal(first, again)
    torch.manual_seed(3)
    torch.testing.assert_close((first, second), f(x))


WRITES: dict[str, Callable[[Tensor], Any]] = {
    "between": lambda x: (x.cos().clone(), x.add_(1), x.cos() * 2)[::2],
    "first": lambda x: ((c := x.cos()).add_(1), x.cos() * c)[1],
    "second": lambda x: (c := x.cos(), (d := x.cos()).mul_(3), c * d)[2],
    "view": lambda x: (c := x.cos(), x.cos()[:1].zero_(), c * x.cos())[2],
    "constant": lambda x: (c := torch.arange(3.0).unsqueeze(0), c.add_(x[:3]), c + 1)[2],
    "copy": lambda x: (c := x.view(6), c.add_(1), x * 2)[2],
    "float": lambda x: (c := x.float(), c.add_(1), x * 2)[2],
    "operator": lambda x: (c := x.cos(), torch.ops.fusewheel.add_out(c, c, x), c * x.cos())[2],
    "item": lambda x: (c := x.cos(), c.__setitem__(0, 3.0), c + x.cos())[2],
}


@pytest.mark.parametrize("case", WRITES)
def test_writes_in_place_are_respected(case: str) -> None:
    steps(WRITES[case], torch.randn(6))
    call = torch.compile(WRITES[case], backend="fusewheel", options={"inner": "none"})
    x, y = torch.ones(6), torch.ones(6)
    for _ in range(2):  # a constant that was written would differ the second time
        torch.testing.assert_close(call(x), WRITES[case](y))
        torch.testing.assert_close(x, y)


def test_what_is_returned_is_the_callers() -> None:
    """Results are never one tensor where eager gives two, and never a constant of the graph."""

    def f(x: Tensor) -> tuple[Tensor, ...]:
        return x.cos(), x.cos(), torch.arange(6) + 0, x.view(6), x.contiguous()

    call = torch.compile(f, backend="fusewheel", options={"inner": "none"})
    x = torch.randn(6)
    first, second, position, view, same = call(x)
    first.zero_()
    position.zero_()
    torch.testing.assert_close(second, x.cos())
    torch.testing.assert_close(call(x)[2], torch.arange(6))
    assert same is x and view is not x and view._base is x


def test_conversions_that_change_nothing_are_left_out() -> None:
    def f(x: Tensor) -> Tensor:
        y = x.contiguous().float().reshape(2, 3).to(torch.float32).expand(2, 3)
        return y.transpose(0, 1).contiguous() + y.t()

    lines = steps(f, torch.randn(2, 3))
    assert not any(count(lines, name) for name in ("float", "reshape", "to", "expand"))
    assert count(lines, "contiguous") == 1  # this one copies


def test_an_operator_that_writes_nothing_keeps_nothing() -> None:
    """Called as a package's code does, without naming the overload."""

    def f(x: Tensor) -> Tensor:
        y = x.contiguous()
        return torch.ops.fusewheel.muladd(y, y, 1.0)

    lines = steps(f, torch.randn(2, 3))
    assert not count(lines, "contiguous") and count(lines, "muladd") == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_conversion_of_a_shared_mask(dtype: torch.dtype) -> None:
    def f(q: Tensor, mask: Tensor) -> Tensor:
        for _ in range(3):
            q = F.scaled_dot_product_attention(q, q, q, mask)
        return q

    q, mask = torch.randn(2, 2, 4, 8, dtype=dtype), torch.ones(4, 4).tril().bool()
    mask[2] = False  # a row that sees nothing
    lines = steps(f, q, mask)
    assert count(lines, "additive") == 1 and count(lines, "scaled_dot_product_attention") == 3

    def written(q: Tensor, mask: Tensor) -> Tensor:
        first = F.scaled_dot_product_attention(q, q, q, mask)
        mask.logical_not_()
        return F.scaled_dot_product_attention(first, q, q, mask)

    assert count(steps(written, q, mask), "additive") == 0
    with torch.autocast("cpu", torch.bfloat16):
        assert count(steps(f, q, mask), "additive") == 0

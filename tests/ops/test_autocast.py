"""Under autocast the dtypes that meet in a model become one."""

from __future__ import annotations

import fusewheel
import torch
from fusewheel.dispatch.operator import Make

HALF = torch.bfloat16


def under_autocast(function, *arguments):
    with torch.autocast("cpu", HALF):
        return function(*arguments)


def test_the_widest_dtype_wins():
    make = Make(seed=31)
    x, weight = make(4, 16), make(16)
    got = under_autocast(fusewheel.rms_norm, x.to(HALF), 16, weight)
    assert torch.equal(got, fusewheel.rms_norm(x.to(HALF).float(), 16, weight))
    same = under_autocast(fusewheel.rms_norm, x.to(HALF), 16, weight.to(HALF))
    assert same.dtype == HALF


def test_products_take_the_dtype_of_autocast():
    make = Make(seed=32)
    x, weight = make(4, 16), make(8, 16)
    got = under_autocast(fusewheel.linear, x, weight)
    assert torch.equal(got, fusewheel.linear(x.to(HALF), weight.to(HALF)))
    assert under_autocast(fusewheel.linear, x.double(), weight.double()).dtype == torch.float64


def test_what_is_written_keeps_its_dtype():
    make = Make(seed=33)
    x, cos, sin = make(1, 2, 3, 8).to(HALF), make(3, 8), make(3, 8)
    want = fusewheel.rope(x, x, cos.to(HALF), sin.to(HALF))[0]
    assert under_autocast(fusewheel.rope_, x, cos, sin) is x
    assert torch.equal(x, want)


def test_gradients_have_the_dtype_of_the_leaves():
    make = Make(seed=34, requires_grad=True)
    x, weight = make(4, 16), make(16)
    under_autocast(lambda: fusewheel.rms_norm(x.to(HALF), 16, weight).sum()).backward()
    assert x.grad.dtype == weight.grad.dtype == torch.float32
    assert weight.grad.any()


def test_without_autocast_the_operator_refuses_a_mixture():
    make = Make(seed=35)
    try:
        torch.ops.fusewheel.rms_norm(make(4, 16).to(HALF), make(16), 1e-6, 0)
    except RuntimeError as error:
        assert "weight must have the dtype of x" in str(error)
    else:
        raise AssertionError("accepted")

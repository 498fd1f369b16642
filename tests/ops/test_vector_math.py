"""The vector functions behind the operators: every 16-bit value, and float32 of every magnitude."""

import math
from collections.abc import Callable

import fusewheel
import pytest
import torch
from nightly import NIGHTLY
from oracle import assert_as_good_as_eager, slow
from torch import Tensor

Function = Callable[[Tensor], Tensor]


def tanh(x: Tensor) -> Tensor:
    """The logit of a single class, capped at 1: what remains of it is its logsumexp."""
    target = torch.zeros(len(x), dtype=torch.int64)
    call = torch.ops.fusewheel.cross_entropy
    return call(x.unsqueeze(-1), target, None, -100, 0.0, 0.0, 1.0, False)[1]


def gelu(form: str) -> tuple[Function, Function]:
    return (
        lambda x: fusewheel.gelu(x, form),
        lambda x: torch.nn.functional.gelu(x, approximate=form),
    )


REFERENCES = {o.name: o.reference for o in fusewheel.ops.operators()}
# fusewheel's and PyTorch's.
FUNCTIONS: dict[str, tuple[Function, Function]] = {
    "exp": (lambda x: fusewheel.exp_add(x, 0.0), torch.exp),
    "silu": (lambda x: fusewheel.silu_mul(x, torch.ones_like(x)), torch.nn.functional.silu),
    "tanh": (tanh, torch.tanh),
    "gelu": gelu("none"),
    "gelu by tanh": gelu("tanh"),
}
SPECIALS = [math.inf, -math.inf, math.nan, 0.0, -0.0, 1e-45, -1e-45, 1e-39, -1e-39, 3e38, -3e38]


def judge(name: str, x: Tensor) -> None:
    """Far on the left gates are as small as around 0, and eager's are wrong: each apart."""
    own, torchs = FUNCTIONS[name]
    for part in (x[x < -1], x[~(x < -1)]):
        # logsumexp is float32 whatever the logits are.
        got = own(part).to(x.dtype)
        wide = part.double()
        # In float64 PyTorch's own gelu has no digits left far out on the left.
        tanh_form = name == "gelu by tanh"
        exact = REFERENCES["gelu"](wide, tanh_form) if "gelu" in name else torchs(wide)
        assert_as_good_as_eager(got, torchs(part), exact, name)


@pytest.mark.parametrize("count", [1_000_000, pytest.param(10_000_000, marks=NIGHTLY)])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_floats_of_every_magnitude(name: str, count: int):
    count = 100_000 if slow() else count
    bits = torch.randint(-(2**31), 2**31, (count,), dtype=torch.int64).to(torch.int32)
    near = torch.randn(count // 10) * 4
    x = torch.cat([bits.view(torch.float32), near, torch.tensor(SPECIALS)])
    for part in x.split(1_000_000):
        judge(name, part)


@pytest.mark.parametrize("narrow", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_sixteen_bit_value(name: str, narrow: torch.dtype):
    x = torch.arange(-32768, 32768, dtype=torch.int32).to(torch.int16).view(narrow)
    judge(name, x[~(x.double().abs() > 1e38)])  # beyond, eager's error function overflows

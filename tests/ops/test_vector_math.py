"""The vector functions behind the operators: every 16-bit value, and float32 of every magnitude."""

import math
from collections.abc import Callable

import fusewheel
import pytest
import torch
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


# fusewheel's, PyTorch's, and by how many units in the last place it may be off.
FUNCTIONS: dict[str, tuple[Function, Function, float]] = {
    "exp": (lambda x: fusewheel.exp_add(x, 0.0), torch.exp, 1.05),
    "silu": (lambda x: fusewheel.silu_mul(x, torch.ones_like(x)), torch.nn.functional.silu, 3),
    "tanh": (tanh, torch.tanh, 3),
    "gelu": (*gelu("none"), 3),
    "gelu by tanh": (*gelu("tanh"), 3),
}
SPECIALS = [math.inf, -math.inf, math.nan, 0.0, -0.0, 1e-45, -1e-45, 1e-39, -1e-39, 3e38, -3e38]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_floats_of_every_magnitude(name: str):
    own, torchs, units = FUNCTIONS[name]
    count = 100_000 if slow() else 10_000_000
    bits = torch.randint(-(2**31), 2**31, (count,), dtype=torch.int64).to(torch.int32)
    near = torch.randn(count // 10) * 4
    x = torch.cat([bits.view(torch.float32), near, torch.tensor(SPECIALS)])
    for part in x.split(1_000_000):
        got, exact = own(part).double(), torchs(part.double())
        rounded = exact.float()
        assert torch.equal(got.isnan(), rounded.isnan())
        assert torch.equal(got.isinf(), rounded.isinf())
        finite = rounded.isfinite()
        # Gates fall to 0 on the left, in eager too, before their exact value does.
        base = (part.double() if "lu" in name else exact)[finite].abs()
        unit = torch.exp2(torch.floor(torch.log2(base.clamp(min=2.0**-126)))) * 2.0**-23
        off = ((got - exact)[finite].abs() / unit).max()
        assert off < units, f"{name}: {off:.3f} units in the last place"


@pytest.mark.parametrize("narrow", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_sixteen_bit_value(name: str, narrow: torch.dtype):
    own, torchs, _ = FUNCTIONS[name]
    x = torch.arange(-32768, 32768, dtype=torch.int32).to(torch.int16).view(narrow)
    x = x[~(x.double().abs() > 1e38)]  # beyond, eager's error function overflows
    exact = torchs(x.double())
    got = own(x)
    # logsumexp is float32 whatever the logits are.
    assert_as_good_as_eager(got.to(narrow), torchs(x), exact, name)

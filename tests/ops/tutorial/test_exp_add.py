import math

import fusewheel
import torch
from fuzz.draw import Draw
from oracle import assert_as_good_as_eager
from torch import Tensor


def judge(x: Tensor, what: str) -> None:
    exact = x.double().exp()
    assert_as_good_as_eager(fusewheel.exp_add(x, 0.0), torch.exp(x), exact, what)


def test_specials():
    judge(
        torch.tensor([math.inf, -math.inf, math.nan, 0.0, -0.0, 88.8, -87.5, -103.5, -110.0, 1e30]),
        "specials",
    )


def test_every_sixteen_bit_value():
    bits = torch.arange(-32768, 32768, dtype=torch.int32).to(torch.int16)
    for dtype in (torch.bfloat16, torch.float16):
        judge(bits.view(dtype), str(dtype))


def test_floats_over_the_whole_range():
    judge(torch.empty(2_000_000).uniform_(-104.0, 89.0), "floats")


def any_arguments(d: Draw):
    return d.tensor(*d.shape()), d.choice(0.5, 0.0, -1.0)


FUZZ = {"exp_add": any_arguments}

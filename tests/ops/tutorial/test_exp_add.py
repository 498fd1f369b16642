import math

import fusewheel
import torch
from fuzz.draw import Draw
from oracle import assert_as_good_as_eager


def test_specials():
    x = torch.tensor([math.inf, -math.inf, math.nan, 0.0, -0.0, 88.8, -87.5, -103.5, -110.0, 1e30])
    got = fusewheel.exp_add(x, 0.0)
    want = x.double().exp().float()
    torch.testing.assert_close(got, want, equal_nan=True, rtol=2e-7, atol=2e-45)


def test_every_sixteen_bit_value():
    bits = torch.arange(-32768, 32768, dtype=torch.int32).to(torch.int16)
    for dtype in (torch.bfloat16, torch.float16):
        x = bits.view(dtype)
        assert_as_good_as_eager(
            fusewheel.exp_add(x, 0.0), torch.exp(x), x.double().exp(), str(dtype)
        )


def test_ulps_over_the_whole_range():
    x = torch.empty(2_000_000).uniform_(-104.0, 89.0)
    exact = x.double().exp()
    normal = (exact > 2.0**-126) & (exact < 3.4e38)
    got = fusewheel.exp_add(x, 0.0).double()
    spacing = torch.exp2(torch.floor(torch.log2(exact[normal]))) * 2.0**-23
    assert ((got - exact)[normal].abs() / spacing).max() < 1.05


def any_arguments(d: Draw):
    return d.tensor(*d.shape()), d.choice(0.5, 0.0, -1.0)


FUZZ = {"exp_add": any_arguments}

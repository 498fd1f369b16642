"""A NaN in bfloat16 stays one when it is rounded, whatever its bits are."""

import pytest
import torch

# Every NaN: an exponent of ones and a fraction that is not zero, of both signs.
NANS = torch.tensor(
    [sign | 0x7F80 | fraction for sign in (0, 0x8000) for fraction in range(1, 0x80)]
)
OPS = torch.ops.fusewheel


def bfloat16(bits):
    return bits.to(torch.uint16).view(torch.bfloat16)


def norms(x, weight):
    """What each norm and each cast makes of x."""
    zeros = torch.zeros_like(x)
    for cast in range(3):
        yield OPS.rms_norm(x, weight, 1e-6, cast)[0]
        yield OPS.add_rms_norm(x, zeros, weight, 1e-6, cast)[0]
    yield OPS.layer_norm(x, weight, weight, 1e-6)[0]
    yield OPS.add_layer_norm(x, zeros, weight, weight, 1e-6)[0]


def test_in_the_input():
    x = torch.randn(len(NANS), 67).bfloat16()
    x[:, 5] = bfloat16(NANS)
    for y in norms(x, torch.ones(67).bfloat16()):
        assert y.isnan().all()


def test_in_the_weight():
    for y in norms(torch.randn(3, len(NANS)).bfloat16(), bfloat16(NANS)):
        assert y.isnan().all()


@pytest.mark.parametrize("bits", [0x7F800001, 0x7FFFFFFF, -1])
def test_in_the_statistics(bits):
    x = torch.randn(3, 67).bfloat16()
    weight, good = torch.ones(67).bfloat16(), torch.ones(3)
    bad = torch.full((3,), bits, dtype=torch.int32).view(torch.float32)
    assert OPS.rms_norm_backward(x, x, weight, bad, 0)[0].isnan().all()
    for mean, rstd in ((bad, good), (good, bad)):
        grads = OPS.layer_norm_backward(x, x, weight, mean, rstd, True)
        assert grads[0].isnan().all() and grads[1].isnan().all()

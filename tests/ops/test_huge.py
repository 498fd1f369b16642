"""More elements than 32 bits count."""

import os

import fusewheel
import pytest
import torch
from nightly import NIGHTLY
from oracle import emulated

ROWS, SIZE = 2**16 + 1, 2**15
# bfloat16, x and y.
NEEDED = 2 * 2 * ROWS * SIZE


def too_little_memory() -> bool:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") < 1.5 * NEEDED
    except (AttributeError, ValueError, OSError):
        return True


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(too_little_memory(), reason=f"needs {1.5 * NEEDED / 2**30:.0f} GiB"),
    pytest.mark.skipif(emulated(), reason="the emulator would take hours"),
]


@NIGHTLY
def test_elementwise() -> None:
    x = torch.zeros(ROWS * SIZE, dtype=torch.bfloat16)
    assert x.numel() > 2**31
    where = torch.tensor([0, 1, 2**31 - 1, 2**31, 2**31 + 1, x.numel() - 1])
    x[where] = torch.arange(1.0, 7.0).bfloat16()
    y = fusewheel.gelu(x)
    assert torch.equal(y[where], fusewheel.gelu(x[where]))
    assert torch.count_nonzero(y) == len(where)


@NIGHTLY
def test_rows() -> None:
    """The rows of x share memory, each one element further, so that only y is written."""
    x = torch.randn(ROWS + SIZE, dtype=torch.float32).bfloat16().as_strided((ROWS, SIZE), (1, 1))
    weight = torch.ones(SIZE, dtype=torch.bfloat16)
    y = fusewheel.rms_norm(x, weight.shape, weight)
    assert y.numel() > 2**31
    for rows in (slice(0, 2), slice(ROWS // 2, ROWS // 2 + 2), slice(-3, None)):
        assert torch.equal(y[rows], fusewheel.rms_norm(x[rows].clone(), weight.shape, weight))

"""Operators of FBGEMM for rows of different lengths, and sums over them."""

from __future__ import annotations

from collections.abc import Iterator

import fbgemm_gpu
import torch
from tried import Tried

assert fbgemm_gpu


def operators() -> Iterator[Tried]:
    """Two rows of two and three values: `values[0:2]` and `values[2:5]`."""
    torch.manual_seed(0)
    ops = torch.ops.fbgemm
    ends, values = torch.tensor([0, 2, 5]), torch.randn(5, 2)
    yield Tried(ops.jagged_to_padded_dense.default, [(values, [ends], [3], 0.5)])
    yield Tried(ops.jagged_softmax.default, [(values, ends, 3)])
    yield Tried(ops.segment_sum_csr.default, [(1, ends, values[:, 0].contiguous())])

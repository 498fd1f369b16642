"""The one definition of a dense tensor is that of PyTorch's kernels."""

from __future__ import annotations

from itertools import product

import torch
from fusewheel.ops._elementwise import is_dense


def test_a_tensor_is_dense_if_pytorchs_kernels_say_so() -> None:
    found = set()
    for sizes in product((1, 2, 3), repeat=3):
        for strides in product((0, 1, 2, 3, 4, 6, 9), repeat=3):
            tensor = torch.empty_strided(sizes, strides)
            expected = torch.ops.aten.is_non_overlapping_and_dense(tensor)
            assert is_dense(tensor) == expected, (sizes, strides)
            found.add(expected)
    assert found == {True, False}

"""Linear layers."""

from __future__ import annotations

import torch
from torch import Tensor

from fusewheel.ops.linear.linear import linear


class Linear(torch.nn.Linear):
    """`torch.nn.Linear` by `fusewheel.linear`: the same arguments and state dictionary.

    The weight may have another dtype than the input: `Linear(n, m, dtype=torch.bfloat16)` takes
    float32 and computes in float32, with half the memory for the weight.
    """

    def forward(self, input: Tensor) -> Tensor:
        """`[..., in_features]` to `[..., out_features]`, in the dtype of `input`."""
        return linear(input, self.weight, self.bias)

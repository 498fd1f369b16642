"""Linear layers that only quantised checkpoints need."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fusewheel.ops.linear.linear_int8 import linear_int8
from fusewheel.quantization.modules import LinearInt4, LinearInt8


class Reordered(nn.Module):
    """A quantised layer whose in features are stored in another order than the model's.

    The activations are put into this order, the weight stays as it is.

    Source: `desc_act` of GPTQ, which sorts in features by the group that they belong to.

    Args:
        layer: the layer, with its in features as stored.
        order: `[K]`, int64: for each stored in feature, its number in the model.
    """

    order: Tensor

    def __init__(self, layer: LinearInt4 | LinearInt8, order: Tensor) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.layer = layer
        self.register_buffer("order", order)

    @property
    def bias(self) -> nn.Parameter | None:
        """That of the layer."""
        return self.layer.bias

    @property
    def qweight(self) -> Tensor:
        """The codes, in the order in which they are stored."""
        return self.layer.qweight

    def forward(self, input: Tensor) -> Tensor:
        """`[..., K]` to `[..., N]`, in the dtype of `input`."""
        y: Tensor = self.layer(input.index_select(-1, self.order))
        return y


class LinearInt8Zeros(LinearInt8):
    """A linear layer with an 8-bit weight whose groups have a zero: `w = code * scale + offset`.

    `x @ w.T` is computed as `linear_int8` of the codes, plus the sums of `x` over each group times
    the offsets. Both parts are float32 (float64 if `x` is), and their sum is rounded once.

    Source: GPTQ with `sym=False` and 8 bits.
    """

    offsets: Tensor

    _kept = ("scales", "offsets")

    @classmethod
    def with_offsets(cls, layer: LinearInt8, offsets: Tensor) -> LinearInt8Zeros:
        """A layer that holds the tensors of `layer`, and these offsets `[N, groups]`, float32."""
        sizes = layer.in_features, layer.out_features
        made = cls(*sizes, layer.bias is not None, "meta", None, layer.group_size)
        made.qweight, made.scales, made.bias = layer.qweight, layer.scales, layer.bias
        made.register_buffer("offsets", offsets)
        return made

    def forward(self, input: Tensor) -> Tensor:
        """`[..., K]` to `[..., N]`, in the dtype of `input`."""
        wide = torch.promote_types(input.dtype, torch.float32)
        x, offsets = input.to(wide), self.offsets.to(wide)
        groups = offsets.shape[1]
        sums = x.unflatten(-1, (groups, x.shape[-1] // groups)).sum(-1)
        y = linear_int8(x, self.qweight, self.scales, self.bias)
        return (y + nn.functional.linear(sums, offsets)).to(input.dtype)

"""Norms."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fusewheel.ops.choices import Cast
from fusewheel.ops.norm.layer_norm import layer_norm
from fusewheel.ops.norm.rms_norm import cast_number, rms_norm


class RMSNorm(torch.nn.RMSNorm):
    """`torch.nn.RMSNorm` by `fusewheel.rms_norm`, which has the formula.

    Its state dictionary is that of `torch.nn.RMSNorm` and of the norms of transformers: `weight`.
    With `cast="llama"` and `eps=1e-6` it computes what `LlamaRMSNorm` does, with `cast="gemma"`
    what `GemmaRMSNorm` does.

    Source: `torch.nn.RMSNorm`.

    Args:
        normalized_shape: the sizes of the last dimensions; a number is the size of the last one.
        eps: added to the mean square; default None, see `fusewheel.rms_norm`.
        elementwise_affine: whether there is a `weight`; default True.
        device: of the weight; default None, which means torch's default.
        dtype: of the weight; default None, which means torch's default.
        cast: `"torch"` (default), `"llama"` or `"gemma"`: where values are rounded. Only by its
            name. The weight of `"gemma"` begins with zeros, of the others with ones.

    Raises:
        ValueError: `cast` is not one of the three.
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        cast: Cast = "torch",
    ) -> None:
        cast_number("RMSNorm", cast)
        self.cast = cast
        sizes = normalized_shape if isinstance(normalized_shape, int) else list(normalized_shape)
        super().__init__(sizes, eps, elementwise_affine, device, dtype)

    def reset_parameters(self) -> None:
        """Sets the weight to what multiplies by 1."""
        if self.elementwise_affine:
            torch.nn.init.constant_(self.weight, 0.0 if self.cast == "gemma" else 1.0)

    def forward(self, input: Tensor) -> Tensor:
        """A tensor of any shape that ends with `normalized_shape`, to the same shape."""
        return rms_norm(input, self.normalized_shape, self.weight, self.eps, cast=self.cast)

    def extra_repr(self) -> str:
        """The text that `print` shows for the layer."""
        return f"{super().extra_repr()}, cast={self.cast}"


class LayerNorm(torch.nn.LayerNorm):
    """`torch.nn.LayerNorm` by `fusewheel.layer_norm`: the same arguments and state dictionary."""

    def forward(self, input: Tensor) -> Tensor:
        """A tensor of any shape that ends with `normalized_shape`, to the same shape."""
        return layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)

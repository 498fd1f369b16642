"""Linear layers with quantised weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from fusewheel.ops.linear.linear_int4 import linear_int4
from fusewheel.ops.linear.linear_int8 import linear_int8
from fusewheel.quantization.formats import Int4Weight, Int8Weight, check_group_size
from fusewheel.quantization.rounding import quantize_int4, quantize_int8


class _QuantizedLinear(torch.nn.Module):
    """The base class of both layers: the bias, and buffers that keep their dtype."""

    qweight: Tensor
    scales: Tensor
    bias: Parameter | None

    # Floating buffers of the weight, which a cast would change.
    _kept: tuple[str, ...] = ("scales",)

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
        dynamic: bool,
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.dynamic = dynamic
        offset = Parameter(torch.zeros(out_features, device=device, dtype=dtype)) if bias else None
        self.register_parameter("bias", offset)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> _QuantizedLinear:
        before = {name: getattr(self, name) for name in self._kept}
        super()._apply(fn, recurse)
        for name, old in before.items():
            new = getattr(self, name)
            if new.dtype != old.dtype:
                setattr(self, name, old.to(new.device))
        return self

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        for name in self._kept:
            saved, own = state.get(prefix + name), getattr(self, name)
            if isinstance(saved, Tensor) and saved.dtype != own.dtype:
                # Copying to another dtype would change the weight.
                setattr(self, name, own.to(saved.dtype))
        super()._load_from_state_dict(state, prefix, *rest)

    def _take_bias(self, bias: Tensor | None) -> None:
        if bias is not None:
            self.bias = bias if isinstance(bias, Parameter) else Parameter(bias)

    def extra_repr(self) -> str:
        """The text that `print` shows for the layer."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, group_size={self.group_size}, dynamic={self.dynamic}"
        )


class LinearInt8(_QuantizedLinear):
    """A linear layer with an 8-bit weight; see `linear_int8`.

    It replaces `torch.nn.Linear`. Instead of `weight` it has the buffers `qweight` and `scales`. A
    new layer is zero; `from_linear` and `from_weight` make one from a weight.

    `to(dtype)`, `half()` and the like cast the bias. They do not cast the scales, whose dtype may
    differ from that of the activations. A state dictionary loads into a layer of the same shape on
    any device, also on `meta` (with `assign=True`); the scales get the dtype that was saved.

    Source: `torch.nn.Linear`; `fusewheel.linear_int8` has the formula.

    Args:
        in_features: K.
        out_features: N.
        bias: whether the layer has a bias; default True.
        device: the device of all tensors; default None, which means torch's default.
        dtype: the dtype of the bias; default None, which means torch's default.
        group_size: in features that share a scale, a multiple of 32 that divides K; default None,
            which means one scale for each out feature.
        dynamic: whether activations are rounded to int8 too; default False.

    Raises:
        ValueError: `group_size` is not as above.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        group_size: int | None = None,
        dynamic: bool = False,
    ) -> None:
        super().__init__(in_features, out_features, bias, device, dtype, dynamic)
        if group_size is not None and (
            group_size < 32 or group_size % 32 or in_features % group_size
        ):
            raise ValueError(
                f"LinearInt8: group_size must be a multiple of 32 that divides in_features, "
                f"{in_features}, got {group_size}"
            )
        self.group_size = group_size
        groups = () if group_size is None else (in_features // group_size,)
        codes = torch.zeros(out_features, in_features, dtype=torch.int8, device=device)
        scales = torch.zeros(out_features, *groups, dtype=torch.float16, device=device)
        self.register_buffer("qweight", codes)
        self.register_buffer("scales", scales)

    @classmethod
    def from_weight(
        cls, weight: Int8Weight, bias: Tensor | None = None, dynamic: bool = False
    ) -> LinearInt8:
        """A layer that holds these very tensors."""
        rows, columns = weight.qweight.shape
        size = None if weight.scales.dim() == 1 else columns // weight.scales.shape[1]
        layer = cls(columns, rows, bias is not None, "meta", None, size, dynamic)
        layer.qweight, layer.scales = weight
        layer._take_bias(bias)
        return layer

    @classmethod
    def from_linear(
        cls, linear: torch.nn.Linear, group_size: int | None = None, dynamic: bool = False
    ) -> LinearInt8:
        """Quantises a layer, see `quantize_int8`; the bias is shared with it."""
        weight = linear.weight.detach()
        if not weight.is_meta:
            layer = cls.from_weight(quantize_int8(weight, group_size), linear.bias, dynamic)
        else:
            sizes = linear.in_features, linear.out_features
            layer = cls(*sizes, linear.bias is not None, "meta", weight.dtype, group_size, dynamic)
        layer.train(linear.training)
        return layer

    def forward(self, input: Tensor) -> Tensor:
        """`[..., K]` to `[..., N]`, in the dtype of `input`."""
        return linear_int8(input, self.qweight, self.scales, self.bias, self.dynamic)


class LinearInt4(_QuantizedLinear):
    """A linear layer with a 4-bit weight; see `linear_int4`.

    It replaces `torch.nn.Linear`. Instead of `weight` it has the buffers `qweight`, `scales` and
    `zeros`. A new layer is zero; `from_linear` and `from_weight` make one from a weight.

    `to(dtype)`, `half()` and the like cast the bias. They do not cast scales and zeros, whose dtype
    may differ from that of the activations. A state dictionary loads into a layer of the same shape
    on any device, also on `meta` (with `assign=True`); the scales get the dtype that was saved.

    Source: `torch.nn.Linear`; `fusewheel.linear_int4` has the formula.

    Args:
        in_features: K, a multiple of `group_size`.
        out_features: N.
        bias: whether the layer has a bias; default True.
        device: the device of all tensors; default None, which means torch's default.
        dtype: the dtype of the bias; default None, which means torch's default.
        group_size: in features that share scale and zero: 32 (default), 64 or 128.
        dynamic: whether activations are rounded to int8 too; default False.

    Raises:
        ValueError: `group_size` is not one of the three, or does not divide K.
    """

    zeros: Tensor

    _kept = ("scales", "zeros")

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        group_size: int = 32,
        dynamic: bool = False,
    ) -> None:
        super().__init__(in_features, out_features, bias, device, dtype, dynamic)
        if in_features % check_group_size("LinearInt4", group_size):
            raise ValueError(
                f"LinearInt4: in_features must be a multiple of group_size, {group_size}, "
                f"got {in_features}"
            )
        self.group_size = group_size
        codes = torch.zeros(out_features, in_features // 2, dtype=torch.uint8, device=device)
        groups = out_features, in_features // group_size
        self.register_buffer("qweight", codes)
        self.register_buffer("scales", torch.zeros(groups, dtype=torch.float16, device=device))
        self.register_buffer("zeros", torch.zeros(groups, dtype=torch.float16, device=device))

    @classmethod
    def from_weight(
        cls, weight: Int4Weight, bias: Tensor | None = None, dynamic: bool = False
    ) -> LinearInt4:
        """A layer that holds these very tensors."""
        rows, half = weight.qweight.shape
        layer = cls(2 * half, rows, bias is not None, "meta", None, weight.group_size, dynamic)
        layer.qweight, layer.scales, layer.zeros, _ = weight
        layer._take_bias(bias)
        return layer

    @classmethod
    def from_linear(
        cls,
        linear: torch.nn.Linear,
        group_size: int = 32,
        dynamic: bool = False,
        importance: Tensor | None = None,
    ) -> LinearInt4:
        """Quantises a layer, see `quantize_int4`; the bias is shared with it."""
        weight = linear.weight.detach()
        if not weight.is_meta:
            quantized = quantize_int4(weight, group_size, importance)
            layer = cls.from_weight(quantized, linear.bias, dynamic)
        else:
            sizes = linear.in_features, linear.out_features
            layer = cls(*sizes, linear.bias is not None, "meta", weight.dtype, group_size, dynamic)
        layer.train(linear.training)
        return layer

    def forward(self, input: Tensor) -> Tensor:
        """`[..., K]` to `[..., N]`, in the dtype of `input`."""
        return linear_int4(
            input, self.qweight, self.scales, self.zeros, self.group_size, self.bias, self.dynamic
        )

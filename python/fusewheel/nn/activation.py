"""Activations, and the gated blocks of language models."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fusewheel.ops.activation.gelu import gelu
from fusewheel.ops.activation.gelu_mul import gelu_mul, gelu_mul_packed
from fusewheel.ops.activation.silu_mul import silu_mul, silu_mul_packed
from fusewheel.ops.choices import Approximate


class GELU(torch.nn.GELU):
    """`torch.nn.GELU` by `fusewheel.gelu`: the same arguments."""

    approximate: Approximate

    def forward(self, input: Tensor) -> Tensor:
        """A tensor of any shape, to the same shape."""
        return gelu(input, self.approximate)


class _Gated(torch.nn.Module):
    """`down_proj(activation(gate_proj(x)) * up_proj(x))`."""

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        bias: bool,
        packed: bool,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.intermediate_size = intermediate_size
        options: dict[str, Any] = {"bias": bias, "device": device, "dtype": dtype}
        if packed:
            self.gate_up_proj = torch.nn.Linear(hidden_size, 2 * intermediate_size, **options)
        else:
            self.gate_proj = torch.nn.Linear(hidden_size, intermediate_size, **options)
            self.up_proj = torch.nn.Linear(hidden_size, intermediate_size, **options)
        self.packed = packed
        self.down_proj = torch.nn.Linear(intermediate_size, hidden_size, **options)


class SwiGLU(_Gated):
    """The feed-forward block of Llama, `down_proj(silu(gate_proj(x)) * up_proj(x))`.

    Its state dictionary is that of `LlamaMLP` in transformers (and of Mistral, Qwen2 and more),
    with `packed` that of `Phi3MLP`.

    Source: Shazeer, "GLU Variants Improve Transformer" (2020).

    Args:
        hidden_size: the features of input and output.
        intermediate_size: the features of gate and up.
        bias: whether the linear layers have a bias; default False.
        packed: whether gate and up are one linear layer, `gate_up_proj`; default False.
        device: of all parameters; default None, which means torch's default.
        dtype: of all parameters; default None, which means torch's default.
    """

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        bias: bool = False,
        *,
        packed: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(hidden_size, intermediate_size, bias, packed, device, dtype)

    def forward(self, input: Tensor) -> Tensor:
        """`[..., hidden_size]` to `[..., hidden_size]`."""
        if self.packed:
            gated = silu_mul_packed(self.gate_up_proj(input))
        else:
            gated = silu_mul(self.gate_proj(input), self.up_proj(input))
        result: Tensor = self.down_proj(gated)
        return result


class GeGLU(_Gated):
    """The feed-forward block of Gemma, `down_proj(gelu(gate_proj(x)) * up_proj(x))`.

    Its state dictionary is that of `GemmaMLP` in transformers.

    Source: Shazeer, "GLU Variants Improve Transformer" (2020).

    Args:
        hidden_size: the features of input and output.
        intermediate_size: the features of gate and up.
        bias: whether the linear layers have a bias; default False.
        approximate: `"tanh"` (default, as in Gemma) or `"none"`, see `fusewheel.gelu`.
        packed: whether gate and up are one linear layer, `gate_up_proj`; default False.
        device: of all parameters; default None, which means torch's default.
        dtype: of all parameters; default None, which means torch's default.
    """

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        bias: bool = False,
        approximate: Approximate = "tanh",
        *,
        packed: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(hidden_size, intermediate_size, bias, packed, device, dtype)
        self.approximate = approximate

    def forward(self, input: Tensor) -> Tensor:
        """`[..., hidden_size]` to `[..., hidden_size]`."""
        if self.packed:
            gated = gelu_mul_packed(self.gate_up_proj(input), self.approximate)
        else:
            gated = gelu_mul(self.gate_proj(input), self.up_proj(input), self.approximate)
        result: Tensor = self.down_proj(gated)
        return result

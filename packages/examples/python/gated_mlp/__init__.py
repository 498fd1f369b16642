"""A gated feed-forward layer that keeps its input for the backward, and nothing else."""

from __future__ import annotations

from typing import Any

import fusewheel  # noqa: F401, loads torch.ops.fusewheel
import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["GatedMLP", "gated_mlp"]


@torch.library.custom_op("gated_mlp::gated_mlp", mutates_args=())
def gated_mlp(x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """`F.linear(silu(g) * u, down)`, where `g` and `u` are the halves of `F.linear(x, gate_up)`.

    Args:
        x: [..., size]; float32, bfloat16, float16 or float64.
        gate_up: [2 * width, size], the rows of the gate and then those of the other half.
        down: [size, width].

    Returns:
        A tensor of the shape and dtype of `x`.
    """
    return F.linear(torch.ops.fusewheel.silu_mul_packed(F.linear(x, gate_up)), down)


@gated_mlp.register_fake
def _(x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    return x.new_empty(*x.shape[:-1], down.shape[0])


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    x, gate_up, down = ctx.saved_tensors
    packed = F.linear(x, gate_up)
    hidden = torch.ops.fusewheel.silu_mul_packed(packed)
    grad_packed = torch.ops.fusewheel.silu_mul_packed_backward(grad @ down, packed)
    grad_gate_up = grad_packed.flatten(0, -2).t() @ x.flatten(0, -2)
    grad_down = grad.flatten(0, -2).t() @ hidden.flatten(0, -2)
    return grad_packed @ gate_up, grad_gate_up, grad_down


gated_mlp.register_autograd(_backward, setup_context=_save)


class GatedMLP(nn.Module):
    """`gated_mlp` with its parameters.

    Args:
        size: of the input's last dimension, and the output's.
        width: of the hidden dimension.
    """

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.gate_up = nn.Parameter(torch.empty(2 * width, size))
        self.down = nn.Parameter(torch.empty(size, width))
        nn.init.kaiming_uniform_(self.gate_up, a=5**0.5)
        nn.init.kaiming_uniform_(self.down, a=5**0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Applies the layer to `x [..., size]`."""
        y: Tensor = gated_mlp(x, self.gate_up, self.down)
        return y

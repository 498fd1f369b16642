"""A small language model as people write it, for scripting and tracing."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Norm(nn.Module):
    def __init__(self, size: int):
        super().__init__()
        self.weight = nn.Parameter(1 + 0.1 * torch.randn(size))

    def forward(self, x: Tensor) -> Tensor:
        dtype = x.dtype
        x = x.to(torch.float64 if dtype == torch.float64 else torch.float32)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * x.to(dtype)


def rotate(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


class Block(nn.Module):
    def __init__(self, size: int, heads: int):
        super().__init__()
        self.heads = heads
        self.before, self.between = Norm(size), Norm(size)
        self.q, self.k, self.v, self.o = (nn.Linear(size, size, bias=False) for _ in range(4))
        self.gate, self.up = nn.Linear(size, 2 * size), nn.Linear(size, 2 * size)
        self.down = nn.Linear(2 * size, size)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, size = x.shape
        y = self.before(x)
        q = self.q(y).view(batch, length, self.heads, -1).transpose(1, 2)
        k = self.k(y).view(batch, length, self.heads, -1).transpose(1, 2)
        v = self.v(y).view(batch, length, self.heads, -1).transpose(1, 2)
        q = q * cos.unsqueeze(1) + rotate(q) * sin.unsqueeze(1)
        k = k * cos.unsqueeze(1) + rotate(k) * sin.unsqueeze(1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(batch, length, size))
        y = self.between(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    def __init__(self, size: int = 32, heads: int = 4, layers: int = 1):
        super().__init__()
        self.blocks = nn.ModuleList([Block(size, heads) for _ in range(layers)])
        self.last = Norm(size)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.last(x)


# What is replaced in it. Its layer has two sums that are normalised; the first norm is of none.
REPLACED = {"add_rms_norm": 2, "rms_norm": 1, "rope": 1, "silu_mul": 1}


def decoder(dtype: torch.dtype = torch.float32) -> Decoder:
    """With random weights, in evaluation mode."""
    torch.manual_seed(0)
    return Decoder().to(dtype).eval()


def inputs(
    dtype: torch.dtype = torch.float32, batch: int = 2, length: int = 6
) -> tuple[Tensor, ...]:
    """Hidden states, cosines and sines."""
    generator = torch.Generator().manual_seed(batch * 100 + length)
    shapes = ((batch, length, 32), (batch, length, 8), (batch, length, 8))
    return tuple(torch.randn(shape, generator=generator).to(dtype) for shape in shapes)


def as_torchscript(
    module: nn.Module, how: str, example: tuple[Tensor, ...]
) -> torch.jit.ScriptModule:
    """The module, scripted or traced."""
    return torch.jit.script(module) if how == "script" else torch.jit.trace(module, example)

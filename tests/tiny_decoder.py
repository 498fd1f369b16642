"""A hand-written decoder of one layer, in which most operators have their place."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

WIDTH, HEADS, GROUPS, CLASSES = 32, 4, 2, 48
SIZE = WIDTH // HEADS
# What is replaced in it where no gradient is needed.
COUNTS = {
    "rms_norm": 1,
    "add_rms_norm": 1,
    "add_layer_norm": 1,
    "rope": 1,
    "silu_mul": 1,
    "grouped_attention": 1,
}


class RMSNorm(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(1 + 0.1 * torch.randn(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class TinyDecoder(torch.nn.Module):
    """Tokens [batch, length] to logits [batch, length, classes]."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        narrow = WIDTH // GROUPS
        self.embedding = torch.nn.Embedding(CLASSES, WIDTH)
        self.norm, self.norm2 = RMSNorm(), RMSNorm()
        self.q, self.out = (torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
        self.k, self.v = (torch.nn.Linear(WIDTH, narrow, bias=False) for _ in range(2))
        self.gate, self.up = (torch.nn.Linear(WIDTH, 40) for _ in range(2))
        self.down = torch.nn.Linear(40, WIDTH)
        # Without a bias the operator is called with None.
        self.last = torch.nn.LayerNorm(WIDTH, bias=False)
        self.head = torch.nn.Linear(WIDTH, CLASSES, bias=False)
        frequencies = 100.0 ** (torch.arange(0, SIZE, 2) / -SIZE)
        self.register_buffer("frequencies", torch.cat((frequencies, frequencies)))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        h = x + self.out(self._attention(self.norm(x)))
        n = self.norm2(h)
        h = h + self.down(F.silu(self.gate(n)) * self.up(n))
        return self.head(self.last(h))

    def _attention(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        shape = batch, length, -1, SIZE
        q, k, v = (p(x).view(shape).transpose(1, 2) for p in (self.q, self.k, self.v))
        angle = torch.arange(length, device=x.device)[:, None] * self.frequencies
        cos, sin = angle.cos(), angle.sin()
        q, k = (t * cos + _half_turned(t) * sin for t in (q, k))
        k, v = map(_repeated, (k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


def _half_turned(x: Tensor) -> Tensor:
    half = SIZE // 2
    return torch.cat((-x[..., half:], x[..., :half]), -1)


def _repeated(x: Tensor) -> Tensor:
    batch, heads, length, size = x.shape
    wide = x[:, :, None].expand(batch, heads, GROUPS, length, size)
    return wide.reshape(batch, heads * GROUPS, length, size)


def decoder() -> TinyDecoder:
    return TinyDecoder().eval()


def tokens(batch: int = 2, length: int = 7) -> Tensor:
    return torch.randint(CLASSES, (batch, length), generator=torch.Generator().manual_seed(1))

"""Small models as people write them, with random weights and inputs for one call."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Inputs = tuple[Tensor, ...]


class RMSNorm(nn.Module):
    def __init__(self, size: int):
        super().__init__()
        self.weight = nn.Parameter(1 + 0.1 * torch.randn(size))

    def forward(self, x: Tensor) -> Tensor:
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * y.to(x.dtype)


class GatedMLP(nn.Module):
    """A normalised residual branch with a gated activation."""

    def __init__(self, size: int, hidden: int):
        super().__init__()
        self.norm = RMSNorm(size)
        self.gate, self.up = (nn.Linear(size, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Encoder(nn.Module):
    """A layer of BERT and MiniLM: attention and a gelu, each normalised afterwards."""

    def __init__(self, size: int, heads: int):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(size, size) for _ in range(4))
        self.up, self.down = nn.Linear(size, 4 * size), nn.Linear(4 * size, size)
        self.first, self.second = nn.LayerNorm(size), nn.LayerNorm(size)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        batch, length, size = x.shape
        q = self.q(x).view(batch, length, self.heads, -1).transpose(1, 2)
        k = self.k(x).view(batch, length, self.heads, -1).transpose(1, 2)
        v = self.v(x).view(batch, length, self.heads, -1).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        y = self.out(y.transpose(1, 2).reshape(batch, length, size))
        x = self.first(x + y)
        return self.second(x + self.down(F.gelu(self.up(x))))


def _rotate_half(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


class DecoderLayer(nn.Module):
    """A layer of Llama for one more token, keys and values of those before it given."""

    def __init__(self, size: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm = RMSNorm(size)
        self.q, self.k, self.v, self.out = (nn.Linear(size, size, bias=False) for _ in range(4))
        self.mlp = GatedMLP(size, 3 * size)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, cache: Tensor) -> Tensor:
        batch, length, size = x.shape
        y = self.norm(x)
        q = self.q(y).view(batch, length, self.heads, -1).transpose(1, 2)
        k = self.k(y).view(batch, length, self.heads, -1).transpose(1, 2)
        v = self.v(y).view(batch, length, self.heads, -1).transpose(1, 2)
        q = q * cos.unsqueeze(1) + _rotate_half(q) * sin.unsqueeze(1)
        k = k * cos.unsqueeze(1) + _rotate_half(k) * sin.unsqueeze(1)
        k, v = torch.cat((cache[0], k), dim=2), torch.cat((cache[1], v), dim=2)
        y = F.scaled_dot_product_attention(q, k, v)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, size))
        return self.mlp(x)


class Decoder(nn.Module):
    def __init__(self, size: int, heads: int, layers: int, vocabulary: int):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, size)
        self.layers = nn.ModuleList([DecoderLayer(size, heads) for _ in range(layers)])
        self.norm = RMSNorm(size)
        self.head = nn.Linear(size, vocabulary, bias=False)

    def forward(self, token: Tensor, cos: Tensor, sin: Tensor, cache: Tensor) -> Tensor:
        x = self.embedding(token)
        for layer in self.layers:
            x = layer(x, cos, sin, cache)
        return self.head(self.norm(x))


class Ranking(nn.Module):
    """Embeddings of categories beside numbers, layers with a norm and a gelu, one score."""

    def __init__(self, numbers: int, categories: int, size: int, width: int):
        super().__init__()
        self.embedding = nn.Embedding(1000, size)
        sizes = [numbers + categories * size, width, width]
        self.layers = nn.ModuleList(
            [nn.Sequential(nn.Linear(a, b), nn.LayerNorm(b), nn.GELU()) for a, b in pairwise(sizes)]
        )
        self.score = nn.Linear(width, 1)

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        x = torch.cat((numbers, self.embedding(categories).flatten(1)), dim=1)
        for layer in self.layers:
            x = layer(x)
        return torch.sigmoid(self.score(x)).squeeze(1)


def mlp() -> tuple[nn.Module, Inputs]:
    return nn.Sequential(GatedMLP(64, 256), GatedMLP(64, 256)), (torch.randn(2, 8, 64),)


def encoder() -> tuple[nn.Module, Inputs]:
    return Encoder(384, 12), (torch.randn(2, 16, 384), torch.zeros(2, 1, 1, 16))


def decoder() -> tuple[nn.Module, Inputs]:
    size, heads, past = 64, 4, 31
    angles = torch.rand(2, 1, size // heads)
    cache = torch.randn(2, 2, heads, past, size // heads)
    tokens = torch.randint(512, (2, 1))
    return Decoder(size, heads, 2, 512), (tokens, angles.cos(), angles.sin(), cache)


def ranking() -> tuple[nn.Module, Inputs]:
    return Ranking(13, 8, 16, 128), (torch.randn(16, 13), torch.randint(1000, (16, 8)))


MODELS: dict[str, Callable[[], tuple[nn.Module, Inputs]]] = {
    "gated MLP": mlp,
    "encoder layer": encoder,
    "decoder step": decoder,
    "ranking": ranking,
}

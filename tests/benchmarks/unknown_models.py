"""Models of architectures that no pattern was written for, with random weights and one input."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Made = tuple[nn.Module, Tensor]


class Residual(nn.Module):
    """A block of ResNet: two convolutions, each normalised over the batch."""

    def __init__(self, channels: int):
        super().__init__()
        self.convs = nn.ModuleList(
            [nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2)]
        )
        self.norms = nn.ModuleList([nn.BatchNorm2d(channels) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norms[0](self.convs[0](x)))
        return F.relu(x + self.norms[1](self.convs[1](y)))


class Recurrence(nn.Module):
    """A linear recurrence with gates, the steps of which are taken in parallel, as in minGRU."""

    def __init__(self, size: int):
        super().__init__()
        self.gate, self.candidate, self.out = (nn.Linear(size, size) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        gate = self.gate(x)
        decay = (-F.softplus(gate)).cumsum(1)
        new = F.elu(self.candidate(x)) + 1.5
        terms = new.log() - F.softplus(-gate) - decay
        return x + self.out((decay + terms.logcumsumexp(1)).exp())


class Squashed(nn.Module):
    """A transformer's layer without softmax, norm or gelu: tanh, linear attention, squared relu."""

    def __init__(self, size: int, heads: int):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.up, self.down = nn.Linear(size, 4 * size), nn.Linear(4 * size, size)
        self.scales = nn.Parameter(torch.ones(2, size))
        self.shifts = nn.Parameter(torch.zeros(2, size))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(0.5 * x) * self.scales[0] + self.shifts[0]
        q, k, v = self.qkv(y).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind()
        q, k = F.elu(q) + 1, F.elu(k) + 1
        weight = 1 / (q @ k.sum(-2).unsqueeze(-1))
        y = ((q @ (k.transpose(-1, -2) @ v)) * weight).transpose(1, 2).flatten(2)
        x = x + self.out(y)
        y = torch.tanh(0.5 * x) * self.scales[1] + self.shifts[1]
        return x + self.down(F.relu(self.up(y)).square())


class Field(nn.Module):
    """A field over coordinates: waves of them, and layers whose activation is a sine."""

    def __init__(self, size: int, layers: int):
        super().__init__()
        self.waves = nn.Parameter(3 * torch.randn(2, size))
        self.layers = nn.ModuleList([nn.Linear(size, size) for _ in range(layers)])

    def forward(self, x: Tensor) -> Tensor:
        y = torch.cos(x @ self.waves)
        for layer in self.layers:
            y = torch.sin(5 * layer(y)) * (0.5 + 0.5 * torch.tanh(y))
        return y.mean(-1)


def convolutions(scale: int = 1) -> Made:
    blocks = nn.Sequential(nn.Conv2d(3, 32 // scale, 3), *(Residual(32 // scale) for _ in range(3)))
    return blocks, torch.randn(4, 3, 64 // scale, 64 // scale)


def recurrence(scale: int = 1) -> Made:
    layers = (Recurrence(256 // scale) for _ in range(3))
    return nn.Sequential(*layers), torch.randn(4, 256 // scale, 256 // scale)


def squashed(scale: int = 1) -> Made:
    layers = (Squashed(256 // scale, 4) for _ in range(3))
    return nn.Sequential(*layers), torch.randn(4, 256 // scale, 256 // scale)


def field(scale: int = 1) -> Made:
    return Field(256 // scale, 4), torch.rand(4096 // scale, 2)


# Each takes a factor by which it is smaller.
MODELS: dict[str, Callable[..., Made]] = {
    "convolutions": convolutions,
    "gated recurrence": recurrence,
    "squashed transformer": squashed,
    "field of sines": field,
}

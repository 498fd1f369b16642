"""A language model of a few thousand parameters in which most patterns occur."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from oracle import to_dtype
from torch import Tensor, nn

CLASSES, WIDTH = 40, 16
# In each layer, in training; the head and the loss are one operator.
COUNTS = {"rms_norm": 1, "add_rms_norm": 1, "silu_mul": 1, "gelu": 1, "add_layer_norm": 1}
LOSS = {"linear_cross_entropy": 1}


class RMSNorm(nn.Module):
    """As Llama writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(WIDTH) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        """`[..., width]`."""
        h = x if x.dtype == torch.float64 else x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * h.to(x.dtype)


class Layer(nn.Module):
    """A gated feed-forward part and one with gelu."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.inner_norm, self.last = RMSNorm(), RMSNorm(), nn.LayerNorm(WIDTH)
        self.gate, self.up = (nn.Linear(WIDTH, 24, bias=False) for _ in range(2))
        self.down = nn.Linear(24, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """`[batch, tokens, width]`."""
        h = self.norm(x)
        x = x + self.down(F.silu(self.gate(h)) * self.up(h))
        y: Tensor = self.last(x + F.gelu(self.inner_norm(x)))
        return y


class SmallModel(nn.Module):
    """Embedding and head share their weight."""

    def __init__(self, layers: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        self.tokens = nn.Embedding(CLASSES, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(WIDTH, CLASSES, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> Tensor:
        """The logits, or the mean loss where there are targets."""
        x = self.tokens(ids)
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.head(self.dropout(x))
        if targets is None:
            return logits
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def small_model(seed: int = 0, **settings: Any) -> SmallModel:
    """The same weights for the same seed."""
    torch.manual_seed(seed)
    return SmallModel(**settings)


def tokens(length: int = 6, batch: int = 2, seed: int = 0) -> Tensor:
    """Random token ids `[batch, length]`."""
    return torch.randint(CLASSES, (batch, length), generator=torch.Generator().manual_seed(seed))


def gradients(model: nn.Module) -> Tensor:
    """All gradients of a model as one vector."""
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def gradients_to_reach(model: nn.Module, *inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Those of the model itself, and exact ones: of a copy in float64."""
    twin = copy.deepcopy(model).double()
    return gradients_of(model, model, *inputs), gradients_of(
        twin, twin, *to_dtype(inputs, torch.float64)
    )


def gradients_of(model: nn.Module, call: Any, *inputs: Tensor) -> Tensor:
    """Those of one call, of the loss or of the sum of the logits."""
    model.zero_grad(set_to_none=True)
    call(*inputs).sum().backward()
    return gradients(model)

"""Architectures no pattern was written for: nothing wrong, nothing raised, in one graph."""

from __future__ import annotations

import copy
from typing import Any

import fusewheel
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.utils import counters

assert fusewheel


class Mamba(nn.Module):
    """A selective scan: gates by silu and softplus, a convolution, a loop over time, a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(8, 32), nn.Linear(16, 8)
        self.conv = nn.Conv1d(16, 16, 3, groups=16, padding=2)
        self.select, self.step = nn.Linear(16, 8), nn.Linear(16, 16)
        self.decay, self.skip = nn.Parameter(torch.rand(16, 4)), nn.Parameter(torch.ones(16))
        self.weight = nn.Parameter(torch.rand(16) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        """`[batch, time, width]`."""
        u, z = self.into(x).chunk(2, -1)
        u = F.silu(self.conv(u.mT)[..., : x.shape[1]].mT)
        b, c = self.select(u).split(4, -1)
        delta = F.softplus(self.step(u))
        state, outputs = x.new_zeros(x.shape[0], 16, 4), []
        for t in range(x.shape[1]):
            keep = torch.exp(-delta[:, t, :, None] * self.decay.exp())
            state = keep * state + (delta[:, t] * u[:, t])[..., None] * b[:, t, None]
            outputs.append((state * c[:, t, None]).sum(-1))
        y = (torch.stack(outputs, 1) + self.skip * u) * F.silu(z)
        y = self.weight * y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)
        result: Tensor = self.out(y)
        return result


class RWKV(nn.Module):
    """Token shift, squared ReLU, a decaying sum and sigmoid gates."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(2))
        self.key, self.value, self.receive, self.up = (nn.Linear(8, 8) for _ in range(4))
        self.mix, self.decay = nn.Parameter(torch.rand(8)), nn.Parameter(torch.rand(8))
        self.groups = nn.GroupNorm(2, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norms[0](x)
        h = torch.lerp(F.pad(h, (0, 0, 1, -1)), h, self.mix)
        k, v, r = self.key(h), self.value(h), self.receive(h)
        top, bottom, outputs = torch.zeros_like(x[:, 0]), torch.zeros_like(x[:, 0]), []
        for t in range(x.shape[1]):
            weight = k[:, t].clamp(max=30).exp()
            top, bottom = (
                self.decay * top + weight * v[:, t],
                self.decay * bottom + weight,
            )
            outputs.append(torch.sigmoid(r[:, t]) * top / bottom)
        x = x + self.groups(torch.stack(outputs, 1).mT).mT
        h = self.norms[1](x)
        result: Tensor = x + torch.sigmoid(self.receive(h)) * self.up(F.relu(self.key(h)).square())
        return result


class ResNet(nn.Module):
    """Convolutions with running statistics, in-place activations and pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b = (nn.Conv2d(i, 8, 3, padding=1) for i in (3, 8, 8))
        self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(3))
        self.squeeze, self.excite = nn.Conv2d(8, 4, 1), nn.Conv2d(4, 8, 1)
        self.relu, self.head = nn.ReLU(inplace=True), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.norms[0](self.stem(x)))
        y = F.silu(self.norms[1](self.a(x)), inplace=True)
        y = self.norms[2](self.b(y))
        y = y * torch.sigmoid(self.excite(F.silu(self.squeeze(y.mean((2, 3), keepdim=True)))))
        y += x
        result: Tensor = self.head(F.adaptive_avg_pool2d(self.relu(y), 1).flatten(1))
        return result


class Recurrent(nn.Module):
    """A hand-written GRU and PyTorch's LSTM cell."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.gates, self.new = nn.LSTMCell(8, 8), nn.Linear(16, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = c = s = torch.zeros_like(x[:, 0])
        for t in range(x.shape[1]):
            h, c = self.cell(x[:, t], (h, c))
            reset, update = torch.sigmoid(self.gates(torch.cat([h, s], -1))).chunk(2, -1)
            s = torch.lerp(torch.tanh(self.new(torch.cat([h, reset * s], -1))), s, update)
        return torch.cat([h, c, s], -1)


class Mixer(nn.Module):
    """Multi-layer perceptrons over tokens and over features."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(2))
        self.tokens = nn.Sequential(nn.Linear(6, 12), nn.GELU(), nn.Linear(12, 6))
        self.features = nn.Sequential(nn.Linear(8, 16), nn.GELU("tanh"), nn.Linear(16, 8))
        self.scale = nn.Parameter(torch.full((8,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        result: Tensor = x + self.scale * self.features(self.norms[1](x))
        return result


MODELS = {"mamba": Mamba, "rwkv": RWKV, "resnet": ResNet, "recurrent": Recurrent, "mixer": Mixer}
# What they do have of the patterns.
EXPECTED = {"rwkv": "layer_norm", "mixer": "gelu"}


def _step(model: nn.Module, call: Any, x: Tensor) -> list[Tensor]:
    """Result, gradients of input and parameters, and the buffers after the call."""
    x = x.clone().requires_grad_()
    y = call(x)
    y.square().sum().backward()
    gradients = [x.grad, *(p.grad for p in model.parameters() if p.grad is not None)]
    vectors = [torch.cat([t.flatten() for t in gradients if t is not None])]
    vectors += [b.detach().clone() for b in model.buffers() if b.is_floating_point()]
    return [y.detach(), *vectors]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", MODELS)
def test_training_and_evaluation(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    eager = MODELS[name]().bfloat16().to(dtype)
    model, exact = copy.deepcopy(eager), copy.deepcopy(eager).double()
    x = torch.randn((2, 3, 6, 6) if name == "resnet" else (2, 6, 8)).to(dtype)
    counters.clear()
    call = torch.compile(model, backend="fusewheel", options={"inner": "eager"}, fullgraph=True)
    runs = _step(model, call, x), _step(eager, eager, x), _step(exact, exact, x.double())
    for got, base, truth in zip(*runs, strict=True):
        assert got.dtype == base.dtype
        # By its length: which single error is the largest one is a matter of chance.
        allowed = 2 * (base - truth).norm() + torch.finfo(dtype).eps * truth.norm()
        assert (got - truth).norm() <= allowed
    with torch.no_grad():
        got, base, truth = call.eval()(x), eager.eval()(x), exact.eval()(x.double())
    assert (got - truth).norm() <= 2 * (base - truth).norm() + torch.finfo(dtype).eps * truth.norm()
    if name in EXPECTED:
        assert counters["fusewheel"][EXPECTED[name]] > 0

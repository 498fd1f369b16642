"""A group of one process, a gated MLP for the plan, and tensors for the losses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import fusewheel
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

BATCH, LENGTH, WIDTH, CLASSES = 2, 8, 16, 32


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return fusewheel.rms_norm(x, self.weight.shape, self.weight, 1e-6)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = Norm()
        self.gate, self.up = (nn.Linear(WIDTH, 24, bias=False) for _ in range(2))
        self.down = nn.Linear(24, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        return self.down(fusewheel.silu_mul(self.gate(h), self.up(h)))


def around(names: dict[str, Any]) -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        block, x = Block(), torch.randn(BATCH, LENGTH, WIDTH)
        expected = block(x)
        weight = distribute_tensor(torch.randn(CLASSES, WIDTH), mesh, [Shard(0)])
        names.update(mesh=mesh, block=block, weight=weight)
        names["x"] = distribute_tensor(x, mesh, [Shard(1)])
        names["logits"] = distribute_tensor(torch.randn(BATCH, LENGTH, CLASSES), mesh, [Shard(-1)])
        target = torch.randint(CLASSES, (BATCH, LENGTH))
        names["target"] = distribute_tensor(target, mesh, [Shard(1)])
        for letter in "qkv":
            heads = torch.randn(BATCH, 4, LENGTH, 8)
            names[letter] = distribute_tensor(heads, mesh, [Shard(2)])
        yield
        q, k, v = (names[letter].to_local() for letter in "qkv")
        torch.testing.assert_close(names["out"], fusewheel.attention(q, k, v, causal=True))
        assert isinstance(block.gate.weight, DTensor)
        torch.testing.assert_close(block(x), expected)
    finally:
        dist.destroy_process_group()

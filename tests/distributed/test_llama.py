"""A small Llama of fused operators trains in parallel as it does in one process."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import fusewheel
import pytest
import torch
from group import SIZE, Check, in_turn
from oracle import assert_program_as_good_as_eager
from torch import Tensor, nn

pytestmark = pytest.mark.long

STEPS = 3
WIDTH, HEADS, GROUPS, HIDDEN, CLASSES, LAYERS, LENGTH = 32, 4, 2, 48, 64, 1, 8
NAMES = ("tensor and sequence parallel", "spread classes", "fully sharded", "compiled")


class RMSNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return fusewheel.rms_norm(x, self.weight.shape, self.weight, 1e-6)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        narrow = WIDTH * GROUPS // HEADS
        self.q, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(WIDTH, narrow, bias=False) for _ in range(2))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        shape = *x.shape[:2], -1, WIDTH // HEADS
        q, k, v = (p(x).view(shape).transpose(1, 2) for p in (self.q, self.k, self.v))
        q, k = fusewheel.rope(q, k, cos, sin)
        k, v = (t.repeat_interleave(HEADS // GROUPS, 1) for t in (k, v))
        scores = q @ k.transpose(-1, -2) / (WIDTH // HEADS) ** 0.5
        return self.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(WIDTH, HIDDEN, bias=False) for _ in range(2))
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(fusewheel.silu_mul(self.gate(x), self.up(x)))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention = RMSNorm(), Attention()
        self.norm2, self.mlp = RMSNorm(), MLP()

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.norm(x), cos, sin)
        return x + self.mlp(self.norm2(x))


class Llama(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(CLASSES, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = RMSNorm()
        self.head = nn.Linear(WIDTH, CLASSES, bias=False)
        size = WIDTH // HEADS
        angles = torch.arange(LENGTH)[:, None] * 100.0 ** (torch.arange(size) / -size)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return self.head(self.norm(x))


@pytest.mark.parametrize("name", NAMES)
def test_trains_as_in_one_process(name: str, passed):
    passed(name)


def checks() -> Iterator[Check]:
    from torch.distributed.tensor import init_device_mesh

    mesh = init_device_mesh("cpu", (SIZE // 2, 2), mesh_dim_names=("twice", "parallel"))["parallel"]
    ways = (
        partial(check_tensor_parallel, mesh, False),
        partial(check_tensor_parallel, mesh, True),
        partial(check_fully_sharded, mesh),
        partial(check_compiled, mesh),
    )
    yield from in_turn(zip(NAMES, ways, strict=True))


def batches() -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        tokens = torch.randint(CLASSES, (4, LENGTH + 1), generator=generator)
        yield tokens[:, :-1], tokens[:, 1:]


def train(model: nn.Module, loss_of: Callable[[Tensor, Tensor], Tensor]) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    found = []
    for tokens, target in batches():
        loss = loss_of(model(tokens), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append((loss.full_tensor() if hasattr(loss, "full_tensor") else loss).item())
    return found


def plain_loss(logits: Tensor, target: Tensor) -> Tensor:
    return fusewheel.cross_entropy(logits.flatten(0, 1), target.flatten())


def check_curve(losses: list[float]) -> None:
    exact = train(Llama().double(), plain_loss)
    assert exact[-1] < exact[0]
    # In float64, where the order of sums is all that differs.
    got, base = (torch.tensor(curve, dtype=torch.float64) for curve in (losses, exact))
    assert_program_as_good_as_eager(got, base, base, "losses")


def tensor_parallel(mesh: Any, spread: bool) -> nn.Module:
    from torch.distributed.tensor import Replicate, Shard, distribute_module, distribute_tensor
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    model = Llama().double()
    for name in ("cos", "sin"):
        setattr(model, name, distribute_tensor(getattr(model, name), mesh, [Replicate()]))
    columns = partial(ColwiseParallel, use_local_output=False)
    rows = partial(RowwiseParallel, output_layouts=Shard(1), use_local_output=False)
    plan: dict[str, Any] = {
        "embedding": RowwiseParallel(
            input_layouts=Replicate(), output_layouts=Shard(1), use_local_output=False
        ),
        "norm": SequenceParallel(),
        "head": columns(input_layouts=Shard(1), output_layouts=Shard(2) if spread else Replicate()),
    }
    for i in range(LAYERS):
        block = f"blocks.{i}"
        gathered = {"desired_input_layouts": (Replicate(), None, None)}
        plan |= {
            f"{block}.norm": SequenceParallel(),
            f"{block}.norm2": SequenceParallel(),
            f"{block}.attention": PrepareModuleInput(
                input_layouts=(Shard(1), None, None), **gathered
            ),
            f"{block}.mlp": PrepareModuleInput(
                input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
            ),
            **{f"{block}.attention.{n}": columns() for n in "qkv"},
            f"{block}.attention.o": rows(),
            **{f"{block}.mlp.{n}": columns() for n in ("gate", "up")},
            f"{block}.mlp.down": rows(),
        }
    return distribute_module(parallelize_module(model, mesh, plan), mesh)


def check_tensor_parallel(mesh: Any, spread: bool) -> None:
    from torch.distributed.tensor import Replicate, distribute_tensor

    model = tensor_parallel(mesh, spread)

    def loss_of(logits: Tensor, target: Tensor) -> Tensor:
        if spread:
            assert logits.placements[0].is_shard(2)
            return fusewheel.distributed.cross_entropy(logits, target)
        return plain_loss(logits, distribute_tensor(target, mesh, [Replicate()]))

    check_curve(train(model, loss_of))


def check_fully_sharded(mesh: Any) -> None:
    from torch.distributed.fsdp import fully_shard

    model = Llama().double()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    rank, size = mesh.get_local_rank(), mesh.size()

    def loss_of(logits: Tensor, target: Tensor) -> Tensor:
        return plain_loss(logits, target.chunk(size)[rank])

    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, tokens: Tensor) -> Tensor:
            return self.model(tokens.chunk(size)[rank])

    losses = torch.tensor(train(Half(), loss_of), dtype=torch.float64)
    torch.distributed.all_reduce(losses, group=mesh.get_group())
    check_curve((losses / size).tolist())


def check_compiled(mesh: Any) -> None:
    from torch.distributed.tensor import Replicate, distribute_tensor

    model = tensor_parallel(mesh, False)
    for block in model.blocks:
        block.mlp.compile(backend="fusewheel", options={"inner": "eager"})

    def loss_of(logits: Tensor, target: Tensor) -> Tensor:
        return plain_loss(logits, distribute_tensor(target, mesh, [Replicate()]))

    with warnings.catch_warnings():
        # Dynamo reads the gradient of what is no leaf.
        warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor")
        check_curve(train(model, loss_of))

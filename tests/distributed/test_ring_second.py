"""Second derivatives of ring attention are those of attention over the whole sequence."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import fusewheel
import pytest
import torch
import torch.distributed as dist
from distributed.rings import (
    OPTIONS,
    SHAPES,
    UNEQUAL,
    WINDOWS,
    distribute,
    make,
    plain,
    sinks_of,
    summed,
    tensors,
)
from group import SIZE, Check
from torch import Tensor

pytestmark = pytest.mark.long

EVERY = OPTIONS | WINDOWS
NAMES = [*EVERY, "DTensors", "third derivatives are refused"]


@pytest.mark.parametrize("name", NAMES)
def test_second_derivatives(name: str, passed: Callable[[str], None]) -> None:
    passed(name)


def checks() -> Iterator[Check]:
    from torch.distributed.tensor import init_device_mesh

    mesh = init_device_mesh("cpu", (2, SIZE // 2), mesh_dim_names=("others", "ring"))
    for how, options in EVERY.items():
        yield how, partial(check_second, SHAPES["grouped heads, other values"], options)
    yield "DTensors", partial(check_second_of_distributed, mesh)
    yield "third derivatives are refused", check_third


def second(
    function: Callable[..., Any], given: Sequence[Tensor], sinks: Tensor, options: dict[str, Any]
) -> list[Tensor]:
    """Gradients of a function of the first ones: of q, k, v, the gradients of both results, and the
    sinks.
    """
    leaves = [t.detach().requires_grad_() for t in (*given, sinks)]
    results = function(*leaves[:3], **options, sinks=leaves[5], return_lse=True)
    inputs = [*leaves[:3], leaves[5]]
    first = torch.autograd.grad(results, inputs, leaves[3:5], create_graph=True)
    # Not of the sinks' slopes, of which each process has a part.
    loss = sum((t.sin() * (i + 1)).sum() for i, t in enumerate(first[:3]))
    loss = loss + (first[3] * sinks).sum() + results[0].cos().sum()
    return list(torch.autograd.grad(loss, leaves))


def check_second(sizes: Sequence[int], options: dict[str, Any]) -> None:
    def piece(t: Tensor) -> Tensor:
        return t.split(UNEQUAL, 2)[dist.get_rank()]

    whole = tensors(sizes, sum(UNEQUAL), sum(UNEQUAL), torch.float64)
    sinks = sinks_of(sizes[0], torch.float64)
    ring = fusewheel.distributed.ring_attention
    *got, of_sinks = second(ring, [piece(t) for t in whole], sinks, options)
    *expected, whole_sinks = second(plain, whole, sinks, options)
    torch.testing.assert_close([*got, summed(of_sinks)], [*map(piece, expected), whole_sinks])


def check_second_of_distributed(mesh: Any) -> None:
    from torch.distributed.tensor import Replicate, Shard

    whole = [t.double() for t in make(12)]
    sinks = sinks_of(4, torch.float64)
    options = {"window": (4, 1)}
    given = distribute(whole, mesh, [Shard(0), Shard(2)])
    spread = distribute([sinks], mesh, [Replicate(), Replicate()])[0]
    got = second(fusewheel.distributed.ring_attention, given, spread, options)
    torch.testing.assert_close([t.full_tensor() for t in got], second(plain, whole, sinks, options))


def check_third() -> None:
    q, k, v, *_ = make(4)
    out = fusewheel.distributed.ring_attention(q.requires_grad_(), k, v)
    (grad,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    (grad,) = torch.autograd.grad(grad.square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()

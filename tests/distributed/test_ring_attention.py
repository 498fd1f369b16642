"""Ring attention is attention over the whole sequence, with its gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import fusewheel
import pytest
import torch
import torch.distributed as dist
from fusewheel.ops.attention import _attention_formula as formula
from group import SIZE, Check
from oracle import DTYPES, Errors, assert_allowed, assert_program_as_good_as_eager
from torch import Tensor

# Query heads, heads of keys and values, head size, that of values.
SHAPES = {
    "equal heads": (4, 4, 8, 8),
    "grouped heads, other values": (4, 2, 16, 5),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True},
    "causal, scale and cap": {"causal": True, "scale": 0.7, "softcap": 2.0},
}
LAYOUTS = {
    "4 devices": 37,
    "2 devices, batch": 24,
    "2 devices, heads": 24,
    "2 devices, whole": 24,
    "fewer positions than devices": 3,
}
NAMES = [
    *(
        f"pieces, {dtype}, {shape}, {how}"
        for dtype in DTYPES
        for shape in SHAPES
        for how in OPTIONS
    ),
    "pieces of unequal lengths",
    "queries of other lengths",
    *(f"DTensor, {layout}, {how}" for layout in LAYOUTS for how in OPTIONS),
    "DTensor, whole sequence",
    "keys are redistributed",
    "what is saved",
    "refusals",
    "pieces that do not fit together",
    "second derivatives are refused",
]


@pytest.mark.parametrize("name", NAMES)
def test_is_attention_over_the_whole_sequence(name: str, passed: Callable[[str], None]) -> None:
    passed(name)


def checks() -> Iterator[Check]:
    from torch.distributed.tensor import init_device_mesh

    mesh = init_device_mesh("cpu", (2, SIZE // 2), mesh_dim_names=("others", "ring"))
    for dtype in DTYPES:
        for shape, sizes in SHAPES.items():
            for how, options in OPTIONS.items():
                run = partial(check_pieces, sizes, [16] * SIZE, options, dtype)
                yield f"pieces, {dtype}, {shape}, {how}", run
    sizes = SHAPES["grouped heads, other values"]
    yield (
        "pieces of unequal lengths",
        partial(check_pieces, sizes, [5, 1, 0, 9], {"causal": True}, torch.float32),
    )
    yield "queries of other lengths", partial(check_other_lengths, sizes)
    for layout, length in LAYOUTS.items():
        for how, options in OPTIONS.items():
            run = partial(check_distributed, mesh, layout, length, options)
            yield f"DTensor, {layout}, {how}", run
    yield "DTensor, whole sequence", partial(check_whole, mesh)
    yield "keys are redistributed", partial(check_redistributed, mesh)
    yield "what is saved", check_saved
    yield "refusals", partial(check_refusals, mesh)
    yield "pieces that do not fit together", check_misfit
    yield "second derivatives are refused", check_second


def tensors(sizes: Sequence[int], queries: int, keys: int, dtype: torch.dtype) -> list[Tensor]:
    """q, k, v and the gradients of the result and of the logsumexp."""
    heads, kv_heads, size, value_size = sizes
    generator = torch.Generator().manual_seed(81)

    def draw(*shape: int) -> Tensor:
        return torch.randn(2, *shape, generator=generator).to(dtype)

    return [
        draw(heads, queries, size),
        draw(kv_heads, keys, size),
        draw(kv_heads, keys, value_size),
        draw(heads, queries, value_size),
        draw(heads, queries).to(torch.float64 if dtype == torch.float64 else torch.float32),
    ]


def evaluate(function: Callable[..., Any], given: Sequence[Tensor], **options: Any) -> list[Tensor]:
    """The result, the logsumexp, and the gradients of q, k and v through both."""
    leaves = [t.detach().requires_grad_() for t in given[:3]]
    results = function(*leaves, **options, return_lse=True)
    return [*(t.detach() for t in results), *torch.autograd.grad(results, leaves, given[3:])]


def plain(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool = False,
    scale: float | None = None,
    softcap: float = 0.0,
    return_lse: bool = True,
) -> tuple[Tensor, Tensor]:
    """Attention in PyTorch's operators."""
    factor = q.shape[3] ** -0.5 if scale is None else scale
    return formula.attention(q, k, v, None, None, -1, 0 if causal else -1, factor, softcap)


def compare(
    got: Sequence[Tensor],
    whole: Sequence[Tensor],
    options: dict[str, Any],
    piece: Callable[[Tensor], Tensor] = lambda t: t,
) -> None:
    """Each result, or this process's piece of it; by eager's errors in the whole of it."""
    eager = evaluate(plain, whole, **options)
    exact = evaluate(plain, [t.double() for t in whole], **options)
    for name, a, b, c in zip(("out", "lse", "q", "k", "v"), got, eager, exact, strict=True):
        errors = Errors(b.dtype, together=True)
        errors.add((b.double() - c).abs(), c)
        assert_allowed(a, piece(b), piece(c), errors, name)


def check_pieces(
    sizes: Sequence[int], lengths: list[int], options: dict[str, Any], dtype: torch.dtype
) -> None:
    def piece(t: Tensor) -> Tensor:
        return t.split(lengths, 2)[dist.get_rank()]

    whole = tensors(sizes, sum(lengths), sum(lengths), dtype)
    got = evaluate(fusewheel.distributed.ring_attention, [piece(t) for t in whole], **options)
    compare(got, whole, options, piece)


def check_other_lengths(sizes: Sequence[int]) -> None:
    rank = dist.get_rank()
    whole = tensors(sizes, 11, 18, torch.float32)
    queries, keys = [2, 0, 5, 4], [3, 7, 1, 7]
    lengths = (queries, keys, keys, queries, queries)
    pieces = [t.split(own, 2)[rank] for t, own in zip(whole, lengths, strict=True)]
    got = evaluate(fusewheel.distributed.ring_attention, pieces)
    eager = evaluate(plain, whole)
    exact = evaluate(plain, [t.double() for t in whole])
    lengths = (queries, queries, queries, keys, keys)
    for a, own, *both in zip(got, lengths, eager, exact, strict=True):
        assert_program_as_good_as_eager(a, *(t.split(own, 2)[rank] for t in both))


def check_distributed(mesh: Any, layout: str, length: int, options: dict[str, Any]) -> None:
    from torch.distributed.tensor import Replicate, Shard

    placements = [Replicate(), Shard(2)]
    if layout in ("4 devices", "fewer positions than devices"):
        mesh, placements = mesh._flatten("all"), [Shard(2)]
    elif not layout.endswith("whole"):
        placements[0] = Shard(0 if layout.endswith("batch") else 1)
    # Heads inside of positions in memory, as a model has them.
    whole = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in make(length)]
    got = evaluate(
        fusewheel.distributed.ring_attention, distribute(whole, mesh, placements), **options
    )
    assert all(list(t.placements) == placements for t in got)
    compare([t.full_tensor() for t in got], whole, options)


def make(length: int) -> list[Tensor]:
    return tensors(SHAPES["grouped heads, other values"], length, length, torch.float32)


def distribute(whole: Sequence[Tensor], mesh: Any, placements: Any) -> list[Tensor]:
    from torch.distributed.tensor import distribute_tensor

    return [distribute_tensor(t, mesh, placements, src_data_rank=None) for t in whole]


def check_whole(mesh: Any) -> None:
    from torch.distributed.tensor import Replicate, Shard

    whole = make(9)
    given = distribute(whole, mesh, [Replicate(), Shard(0)])
    got = evaluate(fusewheel.distributed.ring_attention, given, causal=True)
    compare([t.full_tensor() for t in got], whole, {"causal": True})


def check_redistributed(mesh: Any) -> None:
    from torch.distributed.tensor import Replicate, Shard

    whole = make(24)
    given = distribute(whole, mesh, [Shard(0), Shard(2)])
    given[1] = distribute(whole[1:2], mesh, [Replicate(), Shard(1)])[0]
    got = evaluate(fusewheel.distributed.ring_attention, given, causal=True)
    compare([t.full_tensor() for t in got], whole, {"causal": True})


def check_saved() -> None:
    """The backward keeps this process's pieces, whatever the number of processes."""
    kept = 0

    def keep(t: Tensor) -> Tensor:
        nonlocal kept
        kept += t.numel()
        return t

    q, k, v, *_ = (t.chunk(SIZE, 2)[dist.get_rank()] for t in make(16 * SIZE))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        out, lse = fusewheel.distributed.ring_attention(
            *(t.requires_grad_() for t in (q, k, v)), return_lse=True
        )
    assert kept == sum(t.numel() for t in (q, k, v, out, lse))


def check_refusals(mesh: Any) -> None:
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    ring = fusewheel.distributed.ring_attention
    q, k, v, *_ = make(8)
    with pytest.raises(RuntimeError, match=r"^ring_attention: k must have the dtype of q"):
        ring(q, k.double(), v)
    with pytest.raises(RuntimeError, match=r"^ring_attention: q must have shape \[batch, heads"):
        ring(q[0], k, v)
    with pytest.raises(RuntimeError, match=r"^ring_attention: softcap must be positive"):
        ring(q, k, v, softcap=-1.0)
    with pytest.raises(RuntimeError, match=r"^ring_attention: q and k must have the same length"):
        ring(q[:, :, 1:], k, v, causal=True)
    spread = distribute((q, k, v), mesh, [Replicate(), Shard(2)])
    with pytest.raises(RuntimeError, match=r"^ring_attention: q, k and v must all be DTensors"):
        ring(spread[0], k, v)
    with pytest.raises(ValueError, match=r"^ring_attention: group must be None for DTensors"):
        ring(*spread, group=dist.group.WORLD)
    for placements in ([Shard(2), Shard(2)], [Shard(3), Shard(2)], [Partial(), Shard(2)]):
        like = {"shape": q.shape, "stride": q.stride()}
        first = DTensor.from_local(q, mesh, placements, run_check=False, **like)
        with pytest.raises(RuntimeError, match=r"^ring_attention: q must be whole or cut along"):
            ring(first, *spread[1:])
    heads = distribute((q, k[:, :1], v[:, :1]), mesh, [Shard(1), Shard(2)])
    with pytest.raises(RuntimeError, match=r"heads that 2 devices can share equally, got 4 and 1"):
        ring(*heads)


def check_misfit() -> None:
    """An error in every process: a transfer between pieces that do not fit would hang."""
    q, k, v, *_ = make(4)
    if dist.get_rank() == 2:
        q, k, v = (t[:1] for t in (q, k, v))
    message = (
        r"got \[2, 4, 2, 16, 5\] in process 0 of the group and \[1, 4, 2, 16, 5\] in process 2"
    )
    with pytest.raises(RuntimeError, match=message):
        fusewheel.distributed.ring_attention(q, k, v)


def check_second() -> None:
    q, k, v, *_ = make(4)
    out = fusewheel.distributed.ring_attention(q.requires_grad_(), k, v)
    (grad,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()

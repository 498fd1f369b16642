"""Ring attention is attention over the whole sequence, with its gradients."""

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
    compare,
    distribute,
    evaluate,
    make,
    plain,
    sinks_of,
    summed,
    tensors,
)
from group import SIZE, Check
from oracle import DTYPES, assert_program_as_good_as_eager
from torch import Tensor

pytestmark = pytest.mark.long

LAYOUTS = {
    "4 devices": 37,
    "2 devices, batch": 24,
    "2 devices, heads": 24,
    "2 devices, whole": 24,
    "fewer positions than devices": 3,
}
WITH_SINKS = ("2 devices, batch", "2 devices, heads", "2 devices, whole")
OTHER_LENGTHS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"window": (3, 4)},
}
HALF_AND_WHOLE = (torch.float32, torch.bfloat16)
NAMES = [
    *(
        f"pieces, {dtype}, {shape}, {how}"
        for dtype in DTYPES
        for shape in SHAPES
        for how in OPTIONS
    ),
    *(f"window, {dtype}, {how}" for dtype in HALF_AND_WHOLE for how in WINDOWS),
    "pieces of unequal lengths",
    *(f"queries of other lengths, {how}" for how in OTHER_LENGTHS),
    *(f"DTensor with sinks, {layout}" for layout in WITH_SINKS),
    *(f"DTensor, {layout}, {how}" for layout in LAYOUTS for how in OPTIONS),
    "DTensor, whole sequence",
    "keys are redistributed",
    "what is saved",
    "refusals",
    "pieces that do not fit together",
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
        partial(check_pieces, sizes, UNEQUAL, {"causal": True}, torch.float32),
    )
    for dtype in HALF_AND_WHOLE:
        for how, options in WINDOWS.items():
            run = partial(check_pieces, sizes, UNEQUAL, options, dtype, with_sinks=True)
            yield f"window, {dtype}, {how}", run
    for how, options in OTHER_LENGTHS.items():
        yield f"queries of other lengths, {how}", partial(check_other_lengths, sizes, options)
    for layout in WITH_SINKS:
        run = partial(check_distributed, mesh, layout, 24, {"window": (9, 2)}, with_sinks=True)
        yield f"DTensor with sinks, {layout}", run
    for layout, length in LAYOUTS.items():
        for how, options in OPTIONS.items():
            run = partial(check_distributed, mesh, layout, length, options)
            yield f"DTensor, {layout}, {how}", run
    yield "DTensor, whole sequence", partial(check_whole, mesh)
    yield "keys are redistributed", partial(check_redistributed, mesh)
    yield "what is saved", check_saved
    yield "refusals", partial(check_refusals, mesh)
    yield "pieces that do not fit together", check_misfit


def check_pieces(
    sizes: Sequence[int],
    lengths: list[int],
    options: dict[str, Any],
    dtype: torch.dtype,
    with_sinks: bool = False,
) -> None:
    def piece(t: Tensor) -> Tensor:
        return t.split(lengths, 2)[dist.get_rank()]

    whole = tensors(sizes, sum(lengths), sum(lengths), dtype)
    sinks = sinks_of(sizes[0], dtype) if with_sinks else None
    ring = fusewheel.distributed.ring_attention
    got = evaluate(ring, [piece(t) for t in whole], sinks, **options)
    if sinks is not None:
        got[5] = summed(got[5])
    compare(got, whole, options, piece, sinks)


def check_other_lengths(sizes: Sequence[int], options: dict[str, Any]) -> None:
    rank = dist.get_rank()
    whole = tensors(sizes, 11, 18, torch.float32)
    queries, keys = [2, 0, 5, 4], [3, 7, 1, 7]
    lengths = (queries, keys, keys, queries, queries)
    pieces = [t.split(own, 2)[rank] for t, own in zip(whole, lengths, strict=True)]
    got = evaluate(fusewheel.distributed.ring_attention, pieces, **options)
    eager = evaluate(plain, whole, **options)
    exact = evaluate(plain, [t.double() for t in whole], **options)
    lengths = (queries, queries, queries, keys, keys)
    for a, own, *both in zip(got, lengths, eager, exact, strict=True):
        assert_program_as_good_as_eager(a, *(t.split(own, 2)[rank] for t in both))


def check_distributed(
    mesh: Any, layout: str, length: int, options: dict[str, Any], with_sinks: bool = False
) -> None:
    from torch.distributed.tensor import Replicate, Shard

    placements = [Replicate(), Shard(2)]
    if layout in ("4 devices", "fewer positions than devices"):
        mesh, placements = mesh._flatten("all"), [Shard(2)]
    elif not layout.endswith("whole"):
        placements[0] = Shard(0 if layout.endswith("batch") else 1)
    # Heads inside of positions in memory, as a model has them.
    whole = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in make(length)]
    sinks = sinks_of(4, torch.float32) if with_sinks else None
    spread = None if sinks is None else distribute([sinks], mesh, [Replicate()] * mesh.ndim)[0]
    ring = fusewheel.distributed.ring_attention
    got = evaluate(ring, distribute(whole, mesh, placements), spread, **options)
    assert all(list(t.placements) == placements for t in got[:5])
    compare([t.full_tensor() for t in got], whole, options, sinks=sinks)


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
    with pytest.raises(RuntimeError, match=r"^ring_attention: left must be a number of keys"):
        ring(q, k, v, window=(-2, None))
    with pytest.raises(ValueError, match=r"^ring_attention: window must be \(left, right\)"):
        ring(q, k, v, window=(1,))
    with pytest.raises(RuntimeError, match=r"^ring_attention: sinks must have shape \[4\]"):
        ring(q, k, v, sinks=torch.zeros(3))
    spread = distribute((q, k, v), mesh, [Replicate(), Shard(2)])
    with pytest.raises(RuntimeError, match=r"^ring_attention: q, k and v must all be DTensors"):
        ring(spread[0], k, v)
    with pytest.raises(RuntimeError, match=r"^ring_attention: q, k, v and sinks must all be DTens"):
        ring(*spread, sinks=torch.zeros(4))
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

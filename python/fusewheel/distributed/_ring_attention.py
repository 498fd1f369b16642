"""Attention over a sequence that is cut into pieces, one for each process of a group."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from fusewheel.dispatch.promise import fail
from fusewheel.distributed._ring import SEQUENCE, Ring
from fusewheel.distributed._ring_pieces import Options, attend
from fusewheel.ops.attention._attention import check_attention, empty_heads, factor_of, limits
from fusewheel.ops.attention.attention import attention


def ring_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    window: tuple[int | None, int | None] | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    group: dist.ProcessGroup | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention over a whole sequence of which each process holds one piece.

    The result is `softmax(scale * q @ k.transpose(-1, -2)) @ v` as `fusewheel.attention` computes
    it from the whole tensors; each process gets the rows of its own queries. A process keeps its
    queries, and the pieces of keys and values go round: in each step a process computes attention
    over the piece that it holds, merges the partial result (`fusewheel.merge_attention`), and
    passes the piece on. The backward goes round once more, and the gradients of keys and values
    travel with their piece. The next piece is on its way while a step computes.

    A process holds at most two pieces of keys and values at a time, and keeps only its own for the
    backward: memory does not depend on the number of processes. A process computes nothing for the
    pieces that its queries do not see. So with `causal` the last process has the most work.

    Partial results are merged in float32 (float64 for float64) and rounded once; so are the sums of
    partial gradients. Gradients flow to `q`, `k`, `v` and `sinks`, also through `lse`. For second
    derivatives the pieces go round once more, with the gradients of keys and values. PyTorch
    operators compute them for some queries at a time, so their memory grows linearly with a piece
    too. There are no third derivatives.

    Source: Liu et al., "Ring Attention with Blockwise Transformers" (2023); for the window and the
    sinks see `fusewheel.attention`.

    Args:
        q: `[B, Hq, Lq, D]`; float32, bfloat16, float16 or float64. Either this process's piece, a
            plain tensor, or a DTensor cut along dimension 2 over one dimension of its mesh. Over
            the other dimensions of the mesh it may be whole, or cut along the batch or the heads.
            Pieces of plain tensors lie in the sequence in the order of the processes of `group`.
            Their lengths may differ.
        k: `[B, Hkv, Lk, D]`; Hq is a multiple of Hkv. If `q` is a DTensor, it is one too, and is
            redistributed to the placements of `q`.
        v: `[B, Hkv, Lk, Dv]`, with the rule of `k`.
        causal: whether query `i` of the whole sequence sees no key after `i + Lk - Lq`, with the
            lengths of the whole sequences: the last query sees all keys. Default False.
        window: `(left, right)`: query `i` sees key `i + Lk - Lq`, at most `left` keys before it and
            at most `right` keys after it. None or -1 instead of a number: no limit on that side.
            Default None: no limits.
        scale: the factor of the scores; default `D ** -0.5`.
        softcap: the largest magnitude of a score; default 0, which means no cap.
        sinks: `[Hq]`, one logit for each head, which counts in the softmax but has no value; the
            same numbers in each process. The gradient is that of this process's queries: sum it
            over the group, as the gradients of other parameters. If `q` is a DTensor, it is one
            too, is cut as the heads of `q` are, and has a gradient of partial sums. Default None.
        group: the processes that hold the pieces, for plain tensors only; default None, which means
            all processes.
        return_lse: whether to return the logsumexp of each query's scores too; default False.

    Returns:
        `[B, Hq, Lq, Dv]` in the dtype of `q`: the piece of this process, or a DTensor with the
        placements of `q`. If `return_lse`: this, and `lse` `[B, Hq, Lq]`, float32 (float64 for
        float64), distributed likewise.

    Raises:
        ValueError: `group` is given with DTensors, or `window` is not a pair.
        RuntimeError: as for `fusewheel.attention`; also if only some of the tensors are DTensors,
            if the placements of `q` are not as above, or if the pieces of two processes do not fit
            together.
    """
    op = "ring_attention"
    tensors = (q, k, v) if sinks is None else (q, k, v, sinks)
    kinds = [isinstance(t, DTensor) for t in tensors]
    if any(kinds) and not all(kinds):
        names = "q, k and v" if sinks is None else "q, k, v and sinks"
        fail(op, f"{names} must all be DTensors, or none of them")
    if any(kinds) and group is not None:
        raise ValueError(f"{op}: group must be None for DTensors, which have a mesh")
    left, right = limits(op, causal, window)
    check_attention(op, q, k, v, sinks, None, left, right, softcap)
    how = (left, right, factor_of(q, scale), softcap)
    if isinstance(q, DTensor):
        assert isinstance(k, DTensor) and isinstance(v, DTensor)
        out, lse = _of_distributed(op, q, k, v, sinks, how)
    else:
        out, lse = attend(q, k, v, sinks, Options(Ring(op, group, q, k, v), *how))
    return (out, lse) if return_lse else out


def _of_distributed(
    op: str, q: DTensor, k: DTensor, v: DTensor, sinks: Any, how: tuple[int, int, float, float]
) -> tuple[Tensor, Tensor]:
    mesh, placements = q.device_mesh, q.placements
    _check_placements(op, q, k)
    k, v = (t.redistribute(mesh, placements) for t in (k, v))
    if sinks is not None:
        sinks = sinks.redistribute(mesh, [_of_heads(p, Replicate()) for p in placements])
    if Shard(SEQUENCE) not in placements:
        left, right, scale, softcap = how
        whole = attention(
            *(q, k, v),
            window=(left, right),
            scale=scale,
            softcap=softcap,
            sinks=sinks,
            return_lse=True,
        )
        assert isinstance(whole, tuple)
        return whole
    group = mesh.get_group(placements.index(Shard(SEQUENCE)))
    own_q, own_k, own_v = (t.to_local(grad_placements=placements) for t in (q, k, v))
    if sinks is not None:
        sinks = sinks.to_local(grad_placements=[_of_heads(p, Partial()) for p in placements])
    ring = Ring(op, group, own_q, own_k, own_v)
    out, lse = attend(own_q, own_k, own_v, sinks, Options(ring, *how))
    sizes = (*q.shape[:3], v.shape[3])
    like = (empty_heads(sizes, out.to("meta")), torch.empty(q.shape[:3], device="meta"))
    of_all, of_rows = (
        DTensor.from_local(
            piece, mesh, placements, run_check=False, shape=whole.shape, stride=whole.stride()
        )
        for piece, whole in zip((out, lse), like, strict=True)
    )
    return of_all, of_rows


def _of_heads(placement: Placement, other: Placement) -> Placement:
    """Where one number for each head lies, for queries with a placement; `other` where all devices
    have some of its queries.
    """
    if placement == Shard(1):
        return Shard(0)
    return Replicate() if placement == Replicate() else other


def _check_placements(op: str, q: DTensor, k: DTensor) -> None:
    mesh, placements = q.device_mesh, q.placements
    allowed = (Replicate(), Shard(0), Shard(1), Shard(SEQUENCE))
    heads = math.prod(mesh.size(i) for i, p in enumerate(placements) if p == Shard(1))
    if any(p not in allowed for p in placements) or placements.count(Shard(SEQUENCE)) > 1:
        fail(
            op,
            "q must be whole or cut along batch, heads or length over each dimension of the mesh, "
            f"and along the length over one only, got {placements}",
        )
    if q.shape[1] % heads > 0 or k.shape[1] % heads > 0:
        counts = f"{q.shape[1]} and {k.shape[1]}"
        fail(op, f"q and k must have heads that {heads} devices can share equally, got {counts}")

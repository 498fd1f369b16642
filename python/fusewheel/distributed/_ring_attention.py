"""Attention over a sequence that is cut into pieces, one for each process of a group."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard

from fusewheel.dispatch.promise import fail
from fusewheel.distributed._ring import SEQUENCE, Ring, Transfer
from fusewheel.ops._rows import wide
from fusewheel.ops.attention._attention import check_attention, empty_heads, factor_of
from fusewheel.ops.attention.attention import attention
from fusewheel.ops.attention.merge_attention import merge_attention


def ring_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    softcap: float = 0.0,
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
    backward: memory does not depend on the number of processes. With `causal`, a process computes
    nothing for the pieces after its own, so the last process has the most work.

    Partial results are merged in float32 (float64 for float64) and rounded once; so are the sums of
    partial gradients. Gradients flow to `q`, `k` and `v`, also through `lse`. There are first
    derivatives only.

    Source: Liu et al., "Ring Attention with Blockwise Transformers" (2023).

    Args:
        q: `[B, Hq, Lq, D]`; float32, bfloat16, float16 or float64. Either this process's piece, a
            plain tensor, or a DTensor cut along dimension 2 over one dimension of its mesh. Over
            the other dimensions of the mesh it may be whole, or cut along the batch or the heads.
            Pieces of plain tensors lie in the sequence in the order of the processes of `group`.
            Their lengths may differ.
        k: `[B, Hkv, Lk, D]`; Hq is a multiple of Hkv. Beside a DTensor it is one too, and is
            redistributed to the placements of `q`.
        v: `[B, Hkv, Lk, Dv]`, with the rule of `k`.
        causal: whether a query sees no key after its own position; then queries and keys have the
            same lengths. Default False.
        scale: the factor of the scores; default `D ** -0.5`.
        softcap: the largest magnitude of a score; default 0, which means no cap.
        group: the processes that hold the pieces, for plain tensors only; default None, which means
            all processes.
        return_lse: whether to return the logsumexp of each query's scores too; default False.

    Returns:
        `[B, Hq, Lq, Dv]` in the dtype of `q`: the piece of this process, or a DTensor with the
        placements of `q`. If `return_lse`: this, and `lse` `[B, Hq, Lq]`, float32 (float64 for
        float64), distributed likewise.

    Raises:
        ValueError: `group` is given with DTensors.
        RuntimeError: as for `fusewheel.attention`; also if only some of the three tensors are
            DTensors, if the placements of `q` are not as above, if `causal` and the lengths of
            queries and keys differ, or if the pieces of two processes do not fit together.
    """
    op = "ring_attention"
    kinds = [isinstance(t, DTensor) for t in (q, k, v)]
    if any(kinds) and not all(kinds):
        fail(op, "q, k and v must all be DTensors, or none of them")
    if any(kinds) and group is not None:
        raise ValueError(f"{op}: group must be None for DTensors, which have a mesh")
    _check(op, q, k, v, causal, softcap)
    factor = factor_of(q, scale)
    if isinstance(q, DTensor):
        assert isinstance(k, DTensor) and isinstance(v, DTensor)
        out, lse = _of_distributed(op, q, k, v, causal, factor, softcap)
    else:
        out, lse = _of_pieces(op, (q, k, v), causal, factor, softcap, group)
    return (out, lse) if return_lse else out


def _check(op: str, q: Tensor, k: Tensor, v: Tensor, causal: bool, softcap: float) -> None:
    check_attention(op, q, k, v, None, None, -1, -1, softcap)
    if causal and q.shape[SEQUENCE] != k.shape[SEQUENCE]:
        lengths = f"{q.shape[SEQUENCE]} and {k.shape[SEQUENCE]}"
        fail(op, f"q and k must have the same length if causal is True, got {lengths}")


def _of_distributed(
    op: str,
    q: DTensor,
    k: DTensor,
    v: DTensor,
    causal: bool,
    scale: float,
    softcap: float,
) -> tuple[Tensor, Tensor]:
    mesh, placements = q.device_mesh, q.placements
    _check_placements(op, q, k)
    k, v = (t.redistribute(mesh, placements) for t in (k, v))
    if Shard(SEQUENCE) not in placements:
        whole = attention(q, k, v, causal=causal, scale=scale, softcap=softcap, return_lse=True)
        assert isinstance(whole, tuple)
        return whole
    group = mesh.get_group(placements.index(Shard(SEQUENCE)))
    local = [t.to_local(grad_placements=placements) for t in (q, k, v)]
    out, lse = _of_pieces(op, local, causal, scale, softcap, group)
    sizes = (*q.shape[:3], v.shape[3])
    like = (empty_heads(sizes, out.to("meta")), torch.empty(q.shape[:3], device="meta"))
    of_all, of_rows = (
        DTensor.from_local(
            piece, mesh, placements, run_check=False, shape=whole.shape, stride=whole.stride()
        )
        for piece, whole in zip((out, lse), like, strict=True)
    )
    return of_all, of_rows


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


def _of_pieces(
    op: str,
    pieces: Sequence[Tensor],
    causal: bool,
    scale: float,
    softcap: float,
    group: dist.ProcessGroup | None,
) -> tuple[Tensor, Tensor]:
    options = _Options(Ring(op, group, *pieces), causal, scale, softcap)
    found: tuple[Tensor, Tensor] = _RingAttention.apply(*pieces, options)
    return found


@dataclass(frozen=True)
class _Options:
    ring: Ring
    causal: bool
    scale: float
    softcap: float

    def is_seen(self, step: int) -> bool:
        """Whether this process's queries see keys of the piece that is here in a step."""
        return not self.causal or self.ring.source(step) <= self.ring.rank

    def of_step(self, step: int) -> tuple[int, int, float, float]:
        """The last arguments of the operator: window, scale and soft cap."""
        # A piece before this process's own is seen as a whole.
        return -1, 0 if self.causal and step == 0 else -1, self.scale, self.softcap


class _RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, options: _Options
    ) -> tuple[Tensor, Tensor]:
        ring = options.ring
        parts: tuple[Tensor, ...] = ()
        for step, (keys, values) in ring.pieces(k, v):
            if options.is_seen(step):
                part, part_lse = torch.ops.fusewheel.attention(
                    q, keys, values, None, None, *options.of_step(step)
                )
                # Wide, because as many are merged as there are processes.
                parts = *parts, wide(part), part_lse
                if step > 0:
                    parts = merge_attention(*parts)
        out, lse = parts[0].to(q.dtype), parts[1]
        ctx.options = options
        ctx.save_for_backward(q, k, v, out, lse)
        return out, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor, grad_lse: Tensor) -> Any:
        q, k, v, out, lse = ctx.saved_tensors
        options: _Options = ctx.options
        ring = options.ring
        # Wide, because as many are added as there are processes.
        of_q, *sums = (wide(torch.zeros_like(t)) for t in (q, k, v))
        travelling = Transfer(sums)
        for step, (keys, values) in ring.pieces(k, v):
            more: Sequence[Tensor] = ()
            if options.is_seen(step):
                # With the result and the logsumexp over all keys, the gradients from a part of the
                # keys are terms of the whole gradients.
                of_part, *more, _ = torch.ops.fusewheel.attention_backward(
                    *(grad, grad_lse, q, keys, values, None, None, out, lse),
                    *options.of_step(step),
                )
                of_q += of_part
            sums = list(travelling.arrived())
            for total, term in zip(sums, more, strict=False):
                total += term
            travelling = ring.pass_on(step, sums)
        return *(t.to(q.dtype) for t in (of_q, *travelling.arrived())), None

"""Attention over a sequence that is cut into pieces, one a process: keys and values go round.

    torchrun --nproc-per-node 4 docs/examples/distributed/ring_attention.py

Every process keeps its queries, meets the keys and values of one process after another, and merges
what it finds (`fusewheel.merge_attention`): attention to a part of the keys, with the logarithm of
its sum of exponentials, is all that is needed for attention to all of them. The backward pass goes
round once more, with the gradients of keys and values travelling beside them.

Source: Liu et al., "Ring Attention with Blockwise Transformers" (2023).
"""

from __future__ import annotations

from typing import Any

import fusewheel
import torch
import torch.distributed as dist
from torch import Tensor

aten = torch.ops.aten


def ring_attention(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, group: dist.ProcessGroup | None = None
) -> Tensor:
    """`scaled_dot_product_attention` of the whole sequence, this process's piece of it.

    Args:
        q: queries `[batch, heads, length, D]` on the CPU: piece number `rank` of the sequence, all
            pieces being of one length.
        k: keys, of the same shape.
        v: values, likewise.
        causal: whether a position sees itself and those before it only.
        group: the processes; all of them by default.

    Returns:
        Shape and dtype of `q`. Differentiable in the three tensors.
    """
    result: Tensor = _RingAttention.apply(q, k, v, causal, group or dist.group.WORLD)
    return result


class _RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, causal: bool, group: dist.ProcessGroup
    ) -> Tensor:
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        out, lse = _attention(q, k, v, causal)
        keys, values = k, v
        for step in range(1, size):
            keys, values = _pass_on((keys, values), group)
            if not causal or step <= rank:
                part = _attention(q, keys, values, False)
                out, lse = fusewheel.merge_attention(out, lse, *part)
        out = out.to(q.dtype)
        ctx.causal, ctx.group = causal, group
        ctx.save_for_backward(q, k, v, out, lse)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        q, k, v, out, lse = ctx.saved_tensors
        rank, size = dist.get_rank(ctx.group), dist.get_world_size(ctx.group)
        # The result and the sums are those of all keys, so each part is that of the whole.
        of_q, of_k, of_v = _gradients(grad, q, k, v, out, lse, ctx.causal)
        for step in range(1, size):
            k, v, of_k, of_v = _pass_on((k, v, of_k, of_v), ctx.group)
            if not ctx.causal or step <= rank:
                more = _gradients(grad, q, k, v, out, lse, False)
                of_q, of_k, of_v = of_q + more[0], of_k + more[1], of_v + more[2]
        of_k, of_v = _pass_on((of_k, of_v), ctx.group)
        return *(t.to(q.dtype) for t in (of_q, of_k, of_v)), None, None


def _attention(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    out, lse = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal)
    # Wide, because as many are merged as there are processes.
    return out.to(lse.dtype), lse


def _gradients(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool
) -> tuple[Tensor, ...]:
    backward = aten._scaled_dot_product_flash_attention_for_cpu_backward
    # Wide, because as many are added as there are processes.
    return tuple(t.to(lse.dtype) for t in backward(grad, q, k, v, out, lse, 0.0, causal))


def _pass_on(tensors: tuple[Tensor, ...], group: dist.ProcessGroup) -> list[Tensor]:
    """Gives tensors to the next process and takes those of the one before."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    after, before = (dist.get_global_rank(group, (rank + i) % size) for i in (1, -1))
    taken = [torch.empty_like(t, memory_format=torch.contiguous_format) for t in tensors]
    transfers = [
        dist.P2POp(send, tensor, peer, group)
        for given, new in zip(tensors, taken, strict=True)
        for send, tensor, peer in (
            (dist.isend, given.contiguous(), after),
            (dist.irecv, new, before),
        )
    ]
    for transfer in dist.batch_isend_irecv(transfers):
        transfer.wait()
    return taken


def main() -> None:
    """Compares with attention to the whole sequence."""
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    whole = [torch.randn(2, 4, 8 * size, 16) for _ in range(3)]
    for causal in (False, True):
        expected = torch.nn.functional.scaled_dot_product_attention(*whole, is_causal=causal)
        got = ring_attention(*(t.chunk(size, 2)[rank] for t in whole), causal=causal)
        error = (got - expected.chunk(size, 2)[rank]).abs().max().item()
        print(f"process {rank}, causal {causal}: largest difference {error:.1e}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

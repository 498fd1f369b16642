"""Sequences that lie one after the other in one row, without padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fusewheel.ops.attention.attention import attention
from fusewheel.ops.attention.attention_varlen import attention_varlen


def restarts(position_ids: Tensor | None, query: Tensor) -> Tensor | None:
    """Where packed sequences begin, and their total length; None if there is only one.

    One row of tokens may hold packed sequences. Their positions all begin with the same number and
    rise by one. A row in which all positions are equal is no row of sequences of one token: some
    models have no positions.
    """
    length = query.shape[2]
    if position_ids is None or query.shape[0] != 1 or position_ids.shape != (1, length):
        return None
    # Reading values would end a compiled program here. Without a cache, transformers makes a mask
    # of all pairs from the positions then.
    if torch.compiler.is_compiling():
        return None
    positions = position_ids[0] - position_ids.min()
    is_first = positions == 0
    starts = is_first.nonzero().flatten()
    if not 1 < len(starts) < length or not is_first[0]:
        return None
    beginnings = starts[is_first.cumsum(0) - 1]
    if not torch.equal(beginnings + positions, torch.arange(length, device=positions.device)):
        return None
    return torch.cat((starts, starts.new_tensor([length])))


def packed_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_lens_q: Tensor,
    cu_seq_lens_k: Tensor,
    dropout_p: float,
    **options: Any,
) -> Tensor:
    """Attention of each sequence to itself, `[B, Lq, Hq, Dv]`; rows continue each other."""
    q, k, v = (t.transpose(1, 2).flatten(0, 1) for t in (query, key, value))
    if dropout_p == 0:
        out = attention_varlen(q, k, v, cu_seq_lens_q, cu_seq_lens_k, **options)
        assert isinstance(out, Tensor)
    else:
        out = _one_by_one((q, k, v), cu_seq_lens_q, cu_seq_lens_k, dropout_p=dropout_p, **options)
    return out.unflatten(0, (query.shape[0], query.shape[2]))


def _one_by_one(
    packed: Sequence[Tensor], cu_seq_lens_q: Tensor, cu_seq_lens_k: Tensor, **options: Any
) -> Tensor:
    """A call for each sequence, because `attention_varlen` has no dropout."""
    lengths = [cu.diff().tolist() for cu in (cu_seq_lens_q, cu_seq_lens_k, cu_seq_lens_k)]
    pieces = [t.split(own) for t, own in zip(packed, lengths, strict=True)]
    found: list[Any] = [
        attention(*(t.transpose(0, 1).unsqueeze(0) for t in one), **options)
        for one in zip(*pieces, strict=True)
    ]
    return torch.cat([out.squeeze(0).transpose(0, 1) for out in found])

"""What the cases call the operators of attention with."""

from __future__ import annotations

from collections.abc import Callable

import torch
from cuda_emulated.counts.arguments import HEADS, KEY_HEADS, new, wide
from fusewheel.dispatch.operator import Arguments
from torch import Tensor

SMALL_HEAD = 64
LARGE_HEAD = 256
"""More than tiles for tensor cores have."""
SEQUENCES = 8
"""That are packed together."""


def attention(size: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of one sequence."""
    q = new(1, HEADS // 8, length, size)
    k, v = (new(1, KEY_HEADS // 8, length, size) for _ in range(2))
    return q, k, v


def attention_forward(size: int, length: int) -> Arguments:
    """Causal attention."""
    return *attention(size, length), None, None, -1, 0, size**-0.5, 0.0


def in_dtype(make: Callable[[int], Arguments], dtype: torch.dtype, rows: int) -> Arguments:
    """The same arguments, all floating ones in a dtype."""
    return tuple(
        a.to(dtype) if isinstance(a, Tensor) and a.is_floating_point() else a for a in make(rows)
    )


def marked_values(size: int, element_size: int, length: int) -> int:
    """Bytes of the values, which are read before too, and of a mark for each."""
    rows = KEY_HEADS // 8 * length
    return rows * size * element_size + 2 * rows


def attention_backward(size: int, length: int) -> Arguments:
    """The gradients of causal attention."""
    q, k, v = attention(size, length)
    rows = wide(*q.shape[:-1])
    options = -1, 0, size**-0.5, 0.0
    grad, out = q.clone(), q.clone()
    return grad, rows, q, k, v, None, None, out, rows.clone(), *options


def attention_products(size: int, length: int, element_size: int = 2) -> int:
    """Bytes of the product of each query's gradient and result, written and read; `grad` again.

    A key's gradient begins with these products of all queries, so a launch before reads `grad`.
    """
    queries = HEADS // 8 * length
    return 2 * 4 * queries + element_size * queries * size


def attention_with_sinks(size: int, length: int) -> Arguments:
    """`attention_backward`, with a sink for each head."""
    *most, _, bias, out, logsumexp, left, right, scale, softcap = attention_backward(size, length)
    return *most, new(HEADS // 8), bias, out, logsumexp, left, right, scale, softcap


def sink_sums(length: int) -> int:
    """Bytes of three numbers for each query, and of each head's sink and its gradient."""
    heads = HEADS // 8
    return heads * (3 * 4 * length + 2 + 2)


def packed_sequences(size: int, length: int) -> Arguments:
    """Causal attention of sequences of the same length that are packed together."""
    q, k, v = (t[0].transpose(0, 1).contiguous() for t in attention(size, length))
    bounds = torch.arange(SEQUENCES + 1, dtype=torch.int32) * (length // SEQUENCES)
    return q, k, v, bounds, bounds.clone(), None, -1, 0, size**-0.5, 0.0


def packed_sequences_backward(size: int, length: int) -> Arguments:
    """The gradients of it."""
    q, k, v, *bounds, sinks, left, right, scale, softcap = packed_sequences(size, length)
    rows = wide(HEADS // 8, length)
    options = left, right, scale, softcap
    return q.clone(), rows, q, k, v, *bounds, sinks, q.clone(), rows.clone(), *options


def decoding(heads: int, size: int, keys: int) -> Arguments:
    """One query of each head against a cache."""
    k, v = (new(1, KEY_HEADS, keys, size) for _ in range(2))
    length = torch.full((1,), keys)
    return new(1, heads, 1, size), k, v, length, None, None, None, None, -1, size**-0.5, 0.0

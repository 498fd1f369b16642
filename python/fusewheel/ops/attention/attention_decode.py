"""Attention of a few new queries to a cache of keys and values, in sequences or in pages"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from fusewheel.dispatch.operator import Operator
from fusewheel.dispatch.sharding import Layout, Place, places
from fusewheel.ops._not_tensors import with_type_errors
from fusewheel.ops._rows import compute_dtype, empty_statistic
from fusewheel.ops.attention import _attention_decode as inputs
from fusewheel.ops.attention import _attention_formula as formula
from fusewheel.ops.attention._attention import factor_of, limits
from fusewheel.ops.attention._attention_decode import check_attention_decode


@with_type_errors
def attention_decode(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    lengths: Tensor,
    *,
    block_table: Tensor | None = None,
    k_scales: Tensor | None = None,
    v_scales: Tensor | None = None,
    window: tuple[int | None, int | None] | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """`softmax(scale * q @ k.transpose(-1, -2)) @ v` for the newest queries of each sequence. Its
    keys and values are in a cache.

    It computes what `fusewheel.attention` computes for the first `lengths[b]` keys and values of
    sequence `b`, with `causal=True`. The cache already holds the keys and values of the queries:
    the last query stands at key `lengths[b] - 1` and sees all keys, and query `i` of `Lq` sees keys
    up to `i + lengths[b] - Lq`. More than one query is what speculative decoding asks for. A query
    that sees no key has the result 0 and an `lse` of -inf (the sink, if there is one).

    Only the keys and values that a query sees are read: the rest of a cache, and pages that are not
    in use, may contain NaN. A query that sees a value with an element that is NaN or infinite gets
    NaN.

    A CPU kernel reads each key and value once for all queries of its heads, a GPU kernel once for
    up to 8 of these queries (4 in float64, 16 by tensor cores in half types). Scores, shares and
    sums are float32 (float64 for float64), with the cache converted in registers. The result is
    rounded once. It has the same bits for any number of threads, on any GPU (with tensor cores: on
    any of the same generation), and for pages and for a cache of sequences; a CPU and a GPU round
    differently. Memory is needed for one partial result in every 512 keys; on a GPU in every 512
    keys of the capacity, because the lengths are not read before it starts. Gradients are computed
    by PyTorch operators, with all scores in memory; so is everything under `torch.func`.
    TorchScript compiles no function with keyword-only arguments; there call
    `torch.ops.fusewheel.attention_decode`.

    Source: `flash_attn_with_kvcache` of FlashAttention (Dao et al.), whose `cache_seqlens` are the
    `lengths`; Kwon et al., "PagedAttention" (2023) for pages; sinks and soft cap as in
    `fusewheel.attention`.

    Args:
        q: `[B, Hq, D]`, or `[B, Hq, Lq, D]` with a few queries;
            float32, bfloat16, float16 or float64. Any strides.
        k_cache: `[B, Hkv, capacity, D]`, or pages `[pages, page size, Hkv, D]` with a
            `block_table`; Hq is a multiple of Hkv, and Hq / Hkv heads of `q` in a row share a head
            of the cache. float32, bfloat16 or float16, also another than that of `q`; float64 if
            `q` is float64; or int8 with `k_scales`. Any strides; if the elements of a key are not
            contiguous, the whole cache is copied.
        v_cache: `[B, Hkv, capacity, Dv]` or `[pages, page size, Hkv, Dv]`, with the dtype of
            `k_cache`.
        lengths: `[B]`, int32 or int64: the number of keys of each sequence, from 0 to the capacity.
        block_table: `[B, n]`, int32: the pages of each sequence, in order. If no key of a page is
            seen, its entry is not read; usually it is -1. Default None: no pages.
        k_scales: `[B, Hkv, capacity]` or `[pages, page size, Hkv]`, one scale for each key and
            head: the key is `k_cache * k_scales`. float32 (float64 if `q` is float64). It must be
            given if the cache is int8, and only then. Default None.
        v_scales: likewise for the values; default None.
        window: `(left, right)`: a query sees at most `left` keys before its own; None or -1: no
            limit. `right` changes nothing, because a query sees no later key. Default None.
        scale: the factor of the scores; default `D ** -0.5`.
        softcap: the largest magnitude of a score; default 0, which means no cap.
        sinks: `[Hq]`, one logit for each head, which counts in the softmax but has no value; dtype
            and device of `q`. Default None.
        return_lse: whether to return `lse` too; default False.

    Returns:
        `[B, Hq, Dv]` or `[B, Hq, Lq, Dv]` in the dtype of `q`, contiguous. If `return_lse`: this,
        and `lse` `[B, Hq]` or `[B, Hq, Lq]`, float32 (float64 for float64), a natural logarithm.
        Both are differentiable in `q`, the sinks, the scales, and caches that are not int8.

    Raises:
        ValueError: `window` is not a pair.
        TypeError: a tensor is missing, or `window` is neither a tuple nor a list.
        RuntimeError: a dtype, shape or device is not as above, `window` or `softcap` is out of
            range, or, on a CPU, a length is greater than the capacity or a page that is needed does
            not exist. On a GPU the results of such a sequence are NaN.
    """
    left, right = limits("attention_decode", True, window)
    if right < -1:
        raise RuntimeError(
            f"attention_decode: right must be a number of keys, or -1 for all of them, got {right}"
        )
    scale = factor_of(q, scale)
    one = q.dim() == 3
    out, lse = torch.ops.fusewheel.attention_decode(
        q.unsqueeze(2) if one else q,
        *(k_cache, v_cache, lengths, block_table, k_scales, v_scales, sinks, left, scale, softcap),
    )
    if one:
        out, lse = out.squeeze(2), lse.squeeze(2)
    return (out, lse) if return_lse else out


def _gathered(cache: Tensor, block_table: Tensor | None) -> Tensor:
    """Rows, or single values, of each sequence and head in the order of keys."""
    if block_table is None:
        return cache
    pages = cache[block_table.long().clamp(0, cache.shape[0] - 1)]
    return pages.flatten(1, 2).transpose(1, 2)


def _positions(like: Tensor, count: Any) -> Tensor:
    return torch.arange(count, device=like.device)


def _reference(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    lengths: Tensor,
    block_table: Tensor | None,
    k_scales: Tensor | None,
    v_scales: Tensor | None,
    sinks: Tensor | None,
    left: int,
    scale: float,
    softcap: float,
) -> tuple[Tensor, Tensor]:
    k, v = _gathered(k_cache, block_table), _gathered(v_cache, block_table)
    if k_scales is not None and v_scales is not None:
        dtype = compute_dtype(q)
        k = (k.to(dtype) * _gathered(k_scales, block_table).unsqueeze(-1)).to(q.dtype)
        v = (v.to(dtype) * _gathered(v_scales, block_table).unsqueeze(-1)).to(q.dtype)
    keys, queries = k.shape[2], q.shape[2]
    key = _positions(q, keys)
    length = lengths.view(-1, 1, 1)
    query = _positions(q, queries).unsqueeze(-1) + length - queries
    seen = key <= query
    if left >= 0:
        seen = seen & (key >= query - left)
    # What no query sees may hold anything: also the gradients of products with it must be 0.
    used = seen.any(1).unsqueeze(1)
    k, v = (torch.where(used.unsqueeze(-1), t, 0.0) for t in (k, v))
    common = torch.promote_types(q.dtype, k.dtype)
    wide_sinks = None if sinks is None else sinks.to(common)
    out, lse = formula.attention(
        *(q.to(common), k.to(common), v.to(common), wide_sinks, seen.unsqueeze(1), -1, -1),
        *(scale, softcap),
    )
    wrong = (lengths < 0) | (lengths > keys)
    if block_table is not None:
        pages = block_table.repeat_interleave(k_cache.shape[1], 1)
        missing = (pages < 0) | (pages >= k_cache.shape[0])
        wrong = wrong | (used.squeeze(1) & missing).any(-1)
    wrong = wrong.view(-1, 1, 1)
    lse = torch.where(wrong, torch.nan, lse)
    return torch.where(wrong.unsqueeze(-1), torch.nan, out).to(q.dtype), lse


def _fake(q: Tensor, k_cache: Tensor, v_cache: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    check_attention_decode("attention_decode", q, k_cache, v_cache, *rest)
    return q.new_empty((*q.shape[:3], v_cache.shape[3])), empty_statistic(q)


def _flops(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    lengths: Tensor,
    block_table: Tensor | None,
    *rest: Any,
) -> int:
    batch, heads, queries, size = q.shape
    keys = k_cache.shape[2]
    if block_table is not None:
        keys = block_table.shape[1] * k_cache.shape[1]
    return 2 * batch * heads * queries * keys * (size + v_cache.shape[3])


def _sharding(*arguments: Any) -> Iterator[Layout]:
    """The batch is cut, but not pages, which all sequences share; or the heads, those of q and of
    the cache into as many equal pieces.
    """
    paged = arguments[4] is not None
    caches = (1, 2, 5, 6)
    whole: dict[int, Place] = {} if paged else dict.fromkeys(caches, 0)
    yield Layout(places(arguments, {0: 0, 3: 0, 4: 0, **whole}), (0, 0))
    heads: dict[int, Place] = {0: 1, 7: 0, **dict.fromkeys(caches, 2 if paged else 1)}
    yield Layout(places(arguments, heads), (1, 1), even=True)


OPERATORS = (
    Operator(
        name="attention_decode",
        autocast=None,
        flops=_flops,
        reference=_reference,
        fake=_fake,
        shapes=("q[:3] + v_cache[3:]", "q[:3]"),
        sharding=_sharding,
        samples=inputs.samples,
        bad_inputs=inputs.bad_inputs,
        benchmarks=inputs.benchmarks,
        function=attention_decode,
    ),
)

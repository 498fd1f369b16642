"""What attention_decode refuses, and its sample inputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from fusewheel.dispatch.operator import Arguments, BadInput, Make
from fusewheel.dispatch.promise import Argument, check_same_device, fail
from fusewheel.dispatch.symbolic import known
from fusewheel.ops._checks import (
    check,
    check_floating,
    check_matches,
    check_sizes,
    describe,
)
from fusewheel.ops._rows import compute_dtype, wide
from fusewheel.ops.attention._attention import factor_of

_CACHES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int8)


def check_attention_decode(
    op: str,
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
) -> None:
    """Raises the errors of the kernel (`fusewheel/attention/attention_decode.h`)."""
    first = "q", q
    check_floating(op, first)
    if q.dim() != 4:
        shape = list(q.shape)
        fail(op, f"q must have shape [batch, heads, queries, head size], got {shape}")
    _check_caches(op, q, k_cache, v_cache, block_table is not None)
    _check_lengths(op, q, lengths)
    if block_table is not None:
        _check_table(op, q, k_cache, block_table)
    _check_scales(op, "k_scales", k_scales, q, ("k_cache", k_cache))
    _check_scales(op, "v_scales", v_scales, q, ("v_cache", v_cache))
    if sinks is not None:
        check_matches(op, ("sinks", sinks), first)
        check_sizes(op, ("sinks", sinks), (q.shape[1],), "the heads of q")
    if left < -1:
        fail(op, f"left must be a number of keys, or -1 for all of them, got {left}")
    if not softcap >= 0:
        fail(op, f"softcap must be positive, or 0 for none, got {softcap:f}")


def _check_caches(op: str, q: Tensor, k: Tensor, v: Tensor, paged: bool) -> None:
    key, value = ("k_cache", k), ("v_cache", v)
    _check_cache_dtype(op, key, q)
    _check_cache_shape(op, key, paged)
    check_matches(op, value, key)
    _check_cache_shape(op, value, paged)
    heads, kv_heads = q.shape[1], k.shape[2 if paged else 1]
    message = (
        f"k_cache must have a number of heads that divides that of q, {heads}, got shape "
        f"{list(k.shape)}"
    )
    if known(kv_heads == 0) or known(heads == 0):
        fail(op, message)
    check(op, heads % kv_heads == 0, message)
    expected = k.shape[0] if paged else q.shape[0], *k.shape[1:3], q.shape[3]
    reason = "head size is that of q" if paged else "batch and head size are those of q"
    check_sizes(op, key, expected, reason)
    expected = *k.shape[:3], v.shape[3]
    check_sizes(op, value, expected, "all but the head size are those of k_cache")


def _check_cache_dtype(op: str, cache: Argument, q: Tensor) -> None:
    name, tensor = cache
    dtype = describe(tensor.dtype)
    if tensor.dtype not in _CACHES:
        fail(op, f"{name} must be float32, bfloat16, float16, float64 or int8, got {dtype}")
    wide = tensor.dtype == torch.float64
    if tensor.dtype != torch.int8 and wide != (q.dtype == torch.float64):
        fail(
            op,
            f"{name} must be float64 or int8 where q is float64, and not float64 elsewhere, got "
            f"{dtype} and q in {describe(q.dtype)}",
        )
    check_same_device(op, cache, ("q", q))


def _check_cache_shape(op: str, cache: Argument, paged: bool) -> None:
    name, tensor = cache
    if tensor.dim() != 4:
        pages, sequences = "pages, page size, kv heads", "batch, kv heads, capacity"
        shape = pages if paged else sequences
        fail(op, f"{name} must have shape [{shape}, head size], got {list(tensor.shape)}")


def _check_lengths(op: str, q: Tensor, lengths: Tensor) -> None:
    if lengths.dtype not in (torch.int32, torch.int64):
        fail(op, f"lengths must be int32 or int64, got {describe(lengths.dtype)}")
    check_same_device(op, ("lengths", lengths), ("q", q))
    check_sizes(op, ("lengths", lengths), q.shape[:1], "the batch of q")


def _check_table(op: str, q: Tensor, k: Tensor, table: Tensor) -> None:
    if table.dtype != torch.int32:
        fail(op, f"block_table must be int32, got {describe(table.dtype)}")
    check_same_device(op, ("block_table", table), ("q", q))
    if table.dim() != 2:
        shape = list(table.shape)
        fail(op, f"block_table must have shape [batch, pages of a sequence], got {shape}")
    check_sizes(op, ("block_table", table), (q.shape[0], table.shape[1]), "the batch of q")
    message = f"k_cache must have at least one page, got shape {list(k.shape)}"
    check(op, k.shape[0] != 0, message)


def _check_scales(op: str, name: str, scales: Tensor | None, q: Tensor, cache: Argument) -> None:
    if cache[1].dtype != torch.int8:
        if scales is not None:
            fail(op, f"{name} must be None where {cache[0]} is not int8")
        return
    if scales is None:
        fail(op, f"{name} must be given where {cache[0]} is int8")
    wanted = compute_dtype(q)
    if scales.dtype != wanted:
        got = describe(scales.dtype)
        where = f"where q is {describe(q.dtype)}"
        fail(op, f"{name} must be {describe(wanted)} {where}, got {got}")
    check_same_device(op, (name, scales), ("q", q))
    reason = "that of the cache without the head size"
    check_sizes(op, (name, scales), cache[1].shape[:3], reason)


def random_codes(make: Make, *shape: int) -> Tensor:
    """An int8 cache."""
    generator = torch.Generator().manual_seed(sum(shape))
    codes = torch.randint(-127, 128, shape, generator=generator, dtype=torch.int8)
    return codes.to(make.device)


def random_scales(make: Make, *shape: int) -> Tensor:
    """One positive scale for each key and head."""
    scales = wide(make(*shape).detach()).abs() * 0.02 + 0.005
    return scales.requires_grad_(make.requires_grad)


def whole_numbers(make: Make, values: Sequence[object], dtype: torch.dtype = torch.int32) -> Tensor:
    """A tensor of lengths or pages."""
    return torch.tensor(values, dtype=dtype, device=make.device)


def samples(make: Make) -> Iterator[Arguments]:
    """Argument tuples that cover the options, shapes and strides."""

    def call(
        q: Tensor,
        caches: tuple[Tensor, Tensor],
        lengths: Sequence[int],
        table: Sequence[Sequence[int]] | None = None,
        scales: tuple[Tensor, Tensor] | None = None,
        sinks: Tensor | None = None,
        left: int = -1,
        softcap: float = 0.0,
    ) -> Arguments:
        own = torch.int64 if sinks is None else torch.int32
        pages = None if table is None else whole_numbers(make, table)
        given = q, *caches, whole_numbers(make, lengths, own), pages, *(scales or (None, None))
        return *given, sinks, left, factor_of(q), softcap

    yield call(make(2, 8, 1, 32), (make(2, 2, 40, 32), make(2, 2, 40, 32)), [40, 17])
    # Small enough for finite differences.
    yield call(
        *(make(2, 2, 2, 2), (make(5, 3, 1, 2), make(5, 3, 1, 3)), [4, 2], [[4, 0], [2, 1]]),
        sinks=make(2),
        left=2,
        softcap=2.0,
    )
    codes = random_codes(make, 2, 2, 3, 2), random_codes(make, 2, 2, 3, 2)
    scales = random_scales(make, 2, 2, 3), random_scales(make, 2, 2, 3)
    yield call(make(2, 2, 1, 2), codes, [3, 2], scales=scales)
    codes = random_codes(make, 9, 16, 2, 24), random_codes(make, 9, 16, 2, 40)
    scales = random_scales(make, 9, 16, 2), random_scales(make, 9, 16, 2)
    table = [[8, 1, 5, -1], [0, 7, -1, -1], [3, 2, 4, 6]]
    yield call(
        *(make(3, 6, 1, 24), codes, [40, 20, 64], table, scales, make(6)),
        left=33,
        softcap=5.0,
    )
    # More than one part of the keys.
    yield call(make(1, 8, 3, 80), (make(1, 2, 1100, 80), make(1, 2, 1100, 80)), [1097])
    yield call(make(2, 3, 1, 40), (make(2, 3, 600, 40), make(2, 3, 600, 8)), [600, 13], left=40)
    # Keys in the order of flash-attention.
    k, v = make(2, 50, 3, 32).transpose(1, 2), make(2, 50, 3, 32).transpose(1, 2)
    yield call(make(2, 9, 1, 32).transpose(1, 2).contiguous().transpose(1, 2), (k, v), [50, 31])
    caches = make.strided(2, 4, 20, 33), make.strided(2, 4, 20, 17)
    yield call(make.strided(2, 20, 2, 33), caches, [20, 9], sinks=make.strided(20))
    caches = make(3, 4, 9, 16), make(3, 4, 9, 16)
    yield call(make(3, 4, 2, 16), caches, [9, 1, 0], sinks=make(4))
    yield call(make(0, 4, 1, 8), (make(0, 2, 9, 8), make(0, 2, 9, 8)), [])


def benchmarks(make: Make) -> Iterator[tuple[str, Arguments]]:
    """Arguments of the sizes that models use, each with a label."""
    heads, kv_heads, keys, size = 32, 8, 4096, 128
    for batch in (1, 8):
        shape = batch, kv_heads, keys, size
        q, lengths = make(batch, heads, 1, size), whole_numbers(make, [keys] * batch)
        options = None, -1, size**-0.5, 0.0
        label = f"{batch}x{heads}:{kv_heads}x{keys}x{size}"
        yield label, (q, make(*shape), make(*shape), lengths, None, None, None, *options)
        codes = random_codes(make, *shape), random_codes(make, *shape)
        scales = random_scales(make, *shape[:3]), random_scales(make, *shape[:3])
        yield f"{label} int8", (q, *codes, lengths, None, *scales, *options)


def bad_inputs(make: Make) -> Iterator[BadInput]:
    """Argument tuples that the operator must refuse."""
    q, k, v = make(2, 4, 1, 8), make(2, 2, 6, 8), make(2, 2, 6, 3)
    lengths, table = whole_numbers(make, [6, 2]), whole_numbers(make, [[0], [1]])
    codes = random_codes(make, 2, 2, 6, 8), random_codes(make, 2, 2, 6, 3)
    scales = random_scales(make, 2, 2, 6), random_scales(make, 2, 2, 6)
    rest = (None, -1, 0.5, 0.0)
    good = (lengths, None, None, None, *rest)
    narrow = torch.float32 if q.dtype == torch.float64 else torch.float64

    yield BadInput((q.int(), k, v, *good), "q must be float32.*got int32")
    yield BadInput((q[:, :, 0], k, v, *good), r"q must have shape \[batch, heads, queries")
    yield BadInput((q, k.int(), v, *good), "k_cache must be float32.* or int8, got int32")
    yield BadInput((q, k.to(narrow), v.to(narrow), *good), "k_cache must be float64 or int8 where")
    yield BadInput((q, k[0], v, *good), r"k_cache must have shape \[batch, kv heads, capacity")
    yield BadInput((q, k, v.to(narrow), *good), "v_cache must have the dtype of k_cache")
    yield BadInput((q, k, v[0], *good), r"v_cache must have shape \[batch, kv heads, capacity")
    yield BadInput((q[:, :3], k, v, *good), "divides that of q, 3, got shape")
    yield BadInput((q, k[:, :0], v[:, :0], *good), "divides that of q, 4, got shape")
    yield BadInput((q, k[:1], v, *good), r"k_cache must have shape \[2, 2, 6, 8\]")
    yield BadInput((q, k[..., :7], v, *good), r"k_cache must have shape \[2, 2, 6, 8\]")
    yield BadInput((q, k, v[:, :, :5], *good), r"v_cache must have shape \[2, 2, 6, 3\]")
    none: Arguments = (None, None, None, *rest)
    yield BadInput((q, k, v, lengths.short(), *none), "lengths must be int32 or int64, got int16")
    yield BadInput((q, k, v, lengths[:1], *none), r"lengths must have shape \[2\].*got \[1\]")
    none = none[1:]
    pages = make(3, 6, 2, 8), make(3, 6, 2, 3)
    yield BadInput((q, *pages, lengths, table.long(), *none), "block_table must be int32.*int64")
    yield BadInput((q, k[0], v, lengths, table, *none), r"k_cache must have shape \[pages, page")
    yield BadInput((q, *pages, lengths, table[:, 0], *none), r"block_table must have shape \[batch")
    yield BadInput((q, *pages, lengths, table[:1], *none), r"block_table must have shape \[2, 1\]")
    few = pages[0][:0], pages[1][:0]
    yield BadInput((q, *few, lengths, table, *none), "k_cache must have at least one page")
    few = pages[0][..., :7], pages[1]
    yield BadInput((q, *few, lengths, table, *none), r"k_cache must have shape \[3, 6, 2, 8\]")
    start: Arguments = (q, *codes, lengths, None)
    yield BadInput((*start, None, scales[1], *rest), "k_scales must be given where k_cache is int8")
    yield BadInput((*start, scales[0], None, *rest), "v_scales must be given where v_cache is int8")
    wrong = scales[0].to(torch.float16)
    yield BadInput((*start, wrong, scales[1], *rest), "k_scales must be float.*got float16")
    wrong = scales[1][:, :, :5]
    yield BadInput((*start, scales[0], wrong, *rest), r"v_scales must have shape \[2, 2, 6\]")
    start = (q, k, v, lengths, None)
    yield BadInput((*start, scales[0], None, *rest), "k_scales must be None where k_cache is not")
    yield BadInput((*start, None, None, make(3), *rest[1:]), r"sinks must have shape \[4\]")
    wrong = make(4).to(narrow)
    yield BadInput((*start, None, None, wrong, *rest[1:]), "sinks must have the dtype of q")
    start = (*start, None, None, None)
    yield BadInput((*start, -2, 0.5, 0.0), "left must be a number of keys")
    yield BadInput((*start, -1, 0.5, -1.0), "softcap must be positive, or 0")

"""Decoding beside the formula in float64, PyTorch's attention, and itself in other layouts."""

from __future__ import annotations

from typing import Any

import fusewheel
import pytest
import torch
import torch.nn.functional as F
from fusewheel.dispatch.operator import Make
from fuzz.draw import Draw
from neighbours import assert_call_as_good_as_eager, compute
from ops.attention.decoding import any_table, assert_same, caches, in_pages
from ops.attention.inputs import INFINITY, NAN, leaves
from oracle import assert_as_good_as_eager, assert_program_as_good_as_eager, to_dtype
from torch import Tensor

OPERATOR = {o.name: o for o in fusewheel.ops.operators()}["attention_decode"]


def sequence_by_sequence(
    q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, left: int = -1, **options: Any
) -> tuple[Tensor, Tensor]:
    """The definition: for each query only the keys that it sees exist."""
    batch, heads, queries, size = q.shape
    group = heads // k.shape[1]
    softcap, sinks = options.get("softcap", 0.0), options.get("sinks")
    out = q.new_zeros(batch, heads, queries, v.shape[3])
    lse = q.new_full((batch, heads, queries), -INFINITY)
    for b in range(batch):
        for h in range(heads):
            for i in range(queries):
                at = int(lengths[b]) - queries + i
                own = slice(0 if left < 0 else max(at - left, 0), max(at + 1, 0))
                z = k[b, h // group, own] @ q[b, h, i] * size**-0.5
                z = softcap * (z / softcap).tanh() if softcap else z
                count = len(z)
                z = z if sinks is None else torch.cat((z, sinks[h : h + 1]))
                if len(z):
                    lse[b, h, i] = z.logsumexp(0)
                    out[b, h, i] = (z[:count] - lse[b, h, i]).exp() @ v[b, h // group, own]
    return out, lse


@pytest.mark.parametrize("queries", [1, 2, 5])
@pytest.mark.parametrize("options", [{}, {"left": 3}, {"softcap": 1.5}, {"left": 520}])
@pytest.mark.parametrize("with_sinks", [False, True])
def test_is_its_definition(queries, options, with_sinks):
    lengths = [1, 7, 512, 513, 1030]
    given = caches(lengths, queries=queries, size=5, value_size=3)
    if with_sinks:
        options = {**options, "sinks": Make(torch.float64)(4)}
    want = sequence_by_sequence(*given, **options)
    window = (options["left"], None) if "left" in options else None
    named = {name: value for name, value in options.items() if name != "left"}
    got = fusewheel.attention_decode(*given, window=window, **named, return_lse=True)
    for a, b in zip(got, want, strict=True):
        assert_as_good_as_eager(a, b, b)


def test_wide_heads_and_many_queries():
    """More than a CUDA kernel takes at a time."""
    given = caches([40, 17], heads=12, kv_heads=1, queries=2, size=300, value_size=270)
    got = fusewheel.attention_decode(*given, return_lse=True)
    for a, b in zip(got, sequence_by_sequence(*given), strict=True):
        assert_as_good_as_eager(a, b, b)


def test_one_query_needs_no_dimension():
    q, k, v, lengths = caches([30, 4])
    want = fusewheel.attention_decode(q, k, v, lengths, return_lse=True)
    got = fusewheel.attention_decode(q[:, :, 0], k, v, lengths, return_lse=True)
    assert got[0].shape == (2, 4, 16) and got[1].shape == (2, 4)
    assert_same(got, tuple(t[:, :, 0] for t in want))
    assert torch.equal(fusewheel.attention_decode(q[:, :, 0], k, v, lengths.int()), got[0])


def test_is_causal_attention_to_the_newest_keys():
    given = caches([40, 40], queries=6)
    q, k, v = given[0], given[1][:, :, :40], given[2][:, :, :40]
    want = fusewheel.attention(q, k, v, causal=True, window=(11, None))
    got = fusewheel.attention_decode(*given, window=(11, 0))
    torch.testing.assert_close(got, want)


def by_sdpa(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
    mask = (torch.arange(k.shape[2]) < lengths.unsqueeze(-1))[:, None, None]
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)


@pytest.mark.parametrize("group", [1, 3, 4, 8])
@pytest.mark.parametrize("size", [64, 128, 80, 7])
def test_as_good_as_pytorchs(dtype, group, size):
    given = caches([700, 255], heads=2 * group, size=size, dtype=dtype)
    assert_call_as_good_as_eager(compute, fusewheel.attention_decode, by_sdpa, given, "result")


@pytest.mark.parametrize("page_size", [1, 7, 16, 256])
@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("left", [None, 100])
def test_pages_have_the_bits_of_sequences(dtype, page_size, queries, left):
    q, k, v, lengths = caches([600, 33, 0, 257], queries=queries, size=40, dtype=dtype)
    table = any_table(lengths, page_size)
    pages = (in_pages(t, page_size, table, NAN) for t in (k, v))
    options = {"window": (left, 0), "sinks": Make(dtype)(4), "return_lse": True}
    want = fusewheel.attention_decode(q, k, v, lengths, **options)
    got = fusewheel.attention_decode(q, *pages, lengths, block_table=table, **options)
    assert_same(got, want)


@pytest.mark.parametrize(
    ("group", "size", "value_size", "page_size"),
    [(17, 1, 1, 1), (5, 7, 80, 7), (8, 128, 64, 16), (9, 192, 128, 48)],
)
@pytest.mark.parametrize("options", [{}, {"softcap": 2.0}, {"window": (300, 0)}])
def test_many_heads_that_read_the_same_keys(dtype, group, size, value_size, page_size, options):
    """Their products may be made by other instructions than those of a few."""
    given = caches([600, 33, 0], heads=2 * group, size=size, value_size=value_size, dtype=dtype)
    q, k, v, lengths = given
    options = {**options, "sinks": Make(dtype)(2 * group), "return_lse": True}
    table = any_table(lengths, page_size)
    pages = (in_pages(t, page_size, table, NAN) for t in (k, v))
    got = fusewheel.attention_decode(*given, **options)
    paged = fusewheel.attention_decode(q, *pages, lengths, block_table=table, **options)
    assert_same(paged, got)
    left, softcap = options.get("window", (-1,))[0], options.get("softcap", 0.0)

    def own(q, k, v, sinks):
        return fusewheel.attention_decode(q, k, v, lengths, **{**options, "sinks": sinks})

    def eager(q, k, v, sinks):
        rest = None, None, None, sinks, left, size**-0.5, softcap
        return OPERATOR.reference(q, k, v, lengths, *rest)

    assert_call_as_good_as_eager(compute, own, eager, (q, k, v, options["sinks"]), "result")


def test_heads_beside_each_other_have_the_bits_of_heads_apart(dtype):
    q, k, v, lengths = caches([600, 33], heads=9, kv_heads=3, size=40, dtype=dtype)
    want = fusewheel.attention_decode(q, k, v, lengths, return_lse=True)
    turned = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in (k, v))
    assert_same(fusewheel.attention_decode(q, *turned, lengths, return_lse=True), want)


def quantized(cache: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Codes and one scale for each key and head."""
    scales = cache.double().abs().amax(-1) / 127
    return (cache.double() / scales.unsqueeze(-1)).round().to(torch.int8), scales.to(dtype)


@pytest.mark.parametrize("group", [1, 3, 4, 8, 9])
@pytest.mark.parametrize("paged", [False, True])
def test_int8_is_as_good_as_its_values_in_the_dtype_of_q(dtype, group, paged):
    """The exact result is that of the codes times their scales in float64."""
    q, k, v, lengths = caches([600, 255], heads=2 * group, size=96, dtype=dtype)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    codes, scales = zip(*(quantized(t, wide) for t in (k, v)), strict=True)
    table = any_table(lengths, 16) if paged else None

    def own(q, k_scales, v_scales):
        given = (*codes, k_scales, v_scales)
        if paged and table is not None:
            given = tuple(in_pages(t, 16, table, 0) for t in given)
        return fusewheel.attention_decode(
            *(q, *given[:2], lengths),
            block_table=table,
            k_scales=given[2],
            v_scales=given[3],
            softcap=3.0,
            return_lse=True,
        )

    def eager(q, k_scales, v_scales):
        k = (codes[0].to(k_scales.dtype) * k_scales.unsqueeze(-1)).to(q.dtype)
        v = (codes[1].to(v_scales.dtype) * v_scales.unsqueeze(-1)).to(q.dtype)
        return OPERATOR.reference(q, k, v, lengths, *[None] * 4, -1, 96**-0.5, 3.0)

    assert_call_as_good_as_eager(compute, own, eager, (q, *scales), "result")


@pytest.mark.parametrize("factor", [0.0, 1e-36, 1e-20, 1e20, 1e37, NAN, INFINITY])
def test_int8_with_a_query_unlike_its_neighbours(dtype, factor):
    """Where products are of whole numbers, a query may have none that stand for it."""
    q, k, v, lengths = caches([540, 40], heads=8, size=72, dtype=dtype)
    q[:, 1] *= factor
    q[:, 2, :, 5] *= 1e4
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    codes, scales = zip(*(quantized(t, wide) for t in (k, v)), strict=True)

    def own(q, k_scales, v_scales):
        given = {"k_scales": k_scales, "v_scales": v_scales}
        return fusewheel.attention_decode(q, *codes, lengths, **given, return_lse=True)

    def eager(q, *scales):
        k, v = (
            (c.to(s.dtype) * s.unsqueeze(-1)).to(q.dtype)
            for c, s in zip(codes, scales, strict=True)
        )
        return OPERATOR.reference(q, k, v, lengths, *[None] * 4, -1, 72**-0.5, 0.0)

    assert_call_as_good_as_eager(compute, own, eager, (q, *scales), "result")


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16])
def test_a_cache_of_another_dtype_is_read_as_it_is(stored):
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        q, k, v, lengths = caches([600, 33], size=40, dtype=stored)
        q = q.to(dtype)
        got = fusewheel.attention_decode(q, k, v, lengths, return_lse=True)
        exact = fusewheel.attention_decode(*to_dtype((q, k, v), torch.float64), lengths)
        assert got[0].dtype == dtype and got[1].dtype == torch.float32
        eager, _ = sequence_by_sequence(q, k.to(dtype), v.to(dtype), lengths)
        assert_program_as_good_as_eager(got[0], eager, exact)


def test_derivatives():
    q, k, v, lengths = caches([4, 2], heads=2, kv_heads=1, queries=2, size=2, value_size=3)
    table = any_table(lengths, 2)
    pages = (in_pages(t, 2, table, 0.5) for t in (k, v))
    given = leaves(q, *pages, Make(torch.float64)(2))

    def function(q, k, v, sinks):
        return fusewheel.attention_decode(
            *(q, k, v, lengths),
            block_table=table,
            sinks=sinks,
            window=(1, 0),
            softcap=2.0,
            return_lse=True,
        )

    assert torch.autograd.gradcheck(function, given)
    assert torch.autograd.gradgradcheck(function, given)


def any_arguments(d: Draw):
    heads, group = d.integer(1, 3), d.integer(1, 5)
    batch, queries = d.integer(0 if d.rarely() else 1, 3), d.integer(0 if d.rarely() else 1, 3)
    size, value_size = d.size(1, 65), d.size(1, 65)
    paged, is_int8 = d.flag(), d.rarely()
    if paged:
        page_size, entries = d.size(1, 17), d.integer(1, 9)
        capacity, pages = page_size * entries, d.integer(1, 5)
        whole = pages, page_size, heads
    else:
        capacity = d.size(1, 520)
        whole = batch, heads, capacity
    wide = torch.float64 if d.dtype == torch.float64 else torch.float32
    stored = d.dtype if d.dtype == torch.float64 or d.flag() else d.choice(*HALVES)

    def cache(own: int) -> Tensor:
        if is_int8:
            return d.integers(*whole, own, least=-128, most=127, dtype=torch.int8)
        return d.tensor(*whole, own, dtype=stored, scale=d.choice(1.0, 1e-3, 2.0))

    def scales() -> Tensor | None:
        return d.tensor(*whole, dtype=wide, scale=0.01) if is_int8 else None

    lengths = d.integers(batch, least=0, most=capacity, dtype=d.choice(torch.int32, torch.int64))
    table = None
    if paged:
        table = d.integers(batch, entries, least=0, most=pages - 1, dtype=torch.int32)
    return (
        d.tensor(batch, heads * group, queries, size, scale=d.choice(1.0, 1e-3, 2.0)),
        *(cache(size), cache(value_size), lengths, table, scales(), scales()),
        d.optional(heads * group),
        d.choice(-1, -1, 0, 7, 300),
        d.choice(size**-0.5, 1.0, 0.1),
        d.choice(0.0, 0.0, 2.0),
    )


HALVES = (torch.float32, torch.bfloat16, torch.float16)
FUZZ = {"attention_decode": any_arguments}

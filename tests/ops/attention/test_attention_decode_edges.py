"""Decoding where something is special: no keys, NaN, large scores, threads, wrong lengths."""

from __future__ import annotations

import fusewheel
import pytest
import torch
from fusewheel.dispatch.operator import Make
from neighbours import assert_call_as_good_as_eager, compute
from ops.attention.decoding import any_table, assert_same, caches, in_pages
from ops.attention.inputs import INFINITY, NAN, leaves
from oracle import assert_as_good_as_eager, emulated, to_dtype

OPERATOR = {o.name: o for o in fusewheel.ops.operators()}["attention_decode"]


@pytest.mark.parametrize("junk", [NAN, INFINITY, -INFINITY])
@pytest.mark.parametrize(("queries", "heads"), [(1, 4), (1, 12), (3, 4)])
def test_what_no_query_sees_does_not_count(dtype, junk, queries, heads):
    """Neither in the results nor in the gradients: the room behind a sequence, and before it."""
    q, k, v, lengths = caches([530, 17, 0, 64], heads=heads, queries=queries, dtype=dtype)
    spoilt = [t.clone() for t in (k, v)]
    for t in spoilt:
        for b, length in enumerate(lengths.tolist()):
            t[b, :, length:] = junk
            t[b, :, : max(length - queries - 20, 0)] = junk
    results = []
    for own in ((k, v), spoilt):
        given = leaves(q, *own)
        out, lse = fusewheel.attention_decode(*given, lengths, window=(20, 0), return_lse=True)
        seen = torch.where(lse == -INFINITY, 0.0, lse)
        results.append((out, lse, *torch.autograd.grad((out.sum(), seen.sum()), given)))
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b) and not a.isnan().any()


def test_a_query_sees_nothing_of_what_only_later_ones_see():
    q, k, v, lengths = caches([40], queries=4)
    want = fusewheel.attention_decode(q, k, v, lengths)
    k[:, :, 38], v[:, :, 38] = NAN, NAN
    got = fusewheel.attention_decode(q, k, v, lengths)
    assert torch.equal(got[:, :, :2], want[:, :, :2]) and bool(got[:, :, 2:].isnan().all())


@pytest.mark.parametrize("junk", [NAN, INFINITY])
@pytest.mark.parametrize("group", [2, 6])
def test_a_value_that_is_no_number_spoils_its_queries(dtype, junk, group):
    q, k, v, lengths = caches([600, 33], heads=2 * group, dtype=dtype)
    want = fusewheel.attention_decode(q, k, v, lengths)
    v[0, 1, 7, 3] = junk
    out, lse = fusewheel.attention_decode(q, k, v, lengths, return_lse=True)
    assert torch.equal(out[1], want[1]) and torch.equal(out[0, :group], want[0, :group])
    assert bool(out[0, group:].isnan().all()) and bool(lse.isfinite().all())


def test_a_sequence_without_keys(dtype):
    q, k, v, lengths = caches([0, 1], queries=2, dtype=dtype)
    out, lse = fusewheel.attention_decode(q, k, v, lengths, return_lse=True)
    assert not out[0].any() and not out[1, :, 0].any()
    assert bool((lse[0] == -INFINITY).all()) and bool((lse[1, :, 0] == -INFINITY).all())
    assert torch.equal(out[1, :, 1], v[1, :, 0].repeat_interleave(2, 0))
    sinks = Make(dtype)(4)
    out, lse = fusewheel.attention_decode(q, k, v, lengths, sinks=sinks, return_lse=True)
    assert not out[0].any() and torch.equal(lse[0], sinks.to(lse).unsqueeze(1).expand(4, 2))


@pytest.mark.skipif(emulated(), reason="it is about the CPU kernels")
@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize(("queries", "heads"), [(2, 6), (1, 18)])
def test_the_same_bits_for_any_number_of_threads(dtype, paged, queries, heads):
    q, k, v, lengths = caches([1700, 33, 900], heads=heads, size=40, queries=queries, dtype=dtype)
    table = any_table(lengths, 16) if paged else None
    if table is not None:
        k, v = (in_pages(t, 16, table, NAN) for t in (k, v))
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 7):
            torch.set_num_threads(threads)
            results.append(
                fusewheel.attention_decode(q, k, v, lengths, block_table=table, return_lse=True)
            )
    finally:
        torch.set_num_threads(before)
    assert_same(results[1], results[0])
    assert_same(results[2], results[0])


def test_what_a_sequence_gives_does_not_depend_on_the_others(dtype):
    q, k, v, lengths = caches([1700, 33, 900], dtype=dtype)
    want = fusewheel.attention_decode(q, k, v, lengths)
    for b in range(3):
        own = slice(b, b + 1)
        got = fusewheel.attention_decode(q[own], k[own], v[own], lengths[own])
        assert torch.equal(got, want[own])


@pytest.mark.parametrize("junk", [INFINITY, -INFINITY, NAN])
def test_a_key_that_is_no_number_counts_as_in_the_formula(dtype, junk):
    """A score of minus infinity is a key that is not seen, one of infinity is no number."""
    q, k, v, lengths = caches([600, 33], heads=12, dtype=dtype)
    q.abs_()
    k[0, 1, 7, 3] = junk

    def own(q, k, v):
        return fusewheel.attention_decode(q, k, v, lengths, return_lse=True)

    def eager(q, k, v):
        return OPERATOR.reference(q, k, v, lengths, *[None] * 4, -1, 0.25, 0.0)

    assert_call_as_good_as_eager(compute, own, eager, (q, k, v), "result")


@pytest.mark.parametrize("large", [1e4, -1e4])
def test_large_scores(large):
    """Of either sign, in the first part of the keys or in the last."""
    q, k, v, lengths = caches([1100], heads=2, size=4, dtype=torch.float32)
    q[...] = 1.0
    for at in (3, 1099):
        spoilt = k.clone()
        spoilt[:, :, at] = large
        got = fusewheel.attention_decode(q, spoilt, v, lengths, return_lse=True)
        eager, exact = (
            OPERATOR.reference(*to_dtype((q, spoilt, v), kind), lengths, *[None] * 4, -1, 0.5, 0.0)
            for kind in (torch.float32, torch.float64)
        )
        for triple in zip(got, eager, exact, strict=True):
            assert_as_good_as_eager(*triple)


@pytest.mark.skipif(emulated(), reason="on a GPU wrong lengths and pages give NaN and no error")
def test_lengths_and_pages_that_do_not_exist_are_refused():
    q, k, v, lengths = caches([40, 17])
    for wrong, got in (([40, 46], "46 for sequence 1"), ([-1, 3], "-1 for sequence 0")):
        with pytest.raises(RuntimeError, match=f"lengths must be between 0 and 45.*got {got}"):
            fusewheel.attention_decode(q, k, v, torch.tensor(wrong))
    table = any_table(lengths, 16)
    pages = [in_pages(t, 16, table, NAN) for t in (k, v)]
    for wrong in (-1, len(pages[0]), 2**31 - 1):
        spoilt = table.clone()
        spoilt[1, 1] = wrong
        with pytest.raises(RuntimeError, match=f"between 0 and 6.*got {wrong} in entry 1 of seq"):
            fusewheel.attention_decode(q, *pages, lengths, block_table=spoilt)
    with pytest.raises(RuntimeError, match="lengths must be between 0 and 64"):
        fusewheel.attention_decode(q, *pages, lengths + 40, block_table=table)
    # Pages in which no key is seen need not exist.
    table[0, 0] = -1
    assert (
        fusewheel.attention_decode(q, *pages, lengths, block_table=table, window=(20, 0))
        .isfinite()
        .all()
    )


def test_where_values_cannot_be_looked_at_the_result_is_nan():
    q, k, v, lengths = caches([40, 17])
    rest = None, None, None, -1, 0.25, 0.0
    functions = [OPERATOR.reference, *([OPERATOR.overload] if emulated() else [])]
    for function in functions:
        for wrong in (torch.tensor([40, 46]), torch.tensor([40, -3])):
            out, lse = function(q, k, v, wrong, None, *rest)
            assert bool(out[1].isnan().all()) and bool(lse[1].isnan().all())
            assert not out[0].isnan().any() and not lse[0].isnan().any()
        table = any_table(lengths, 16)
        pages = [in_pages(t, 16, table, NAN) for t in (k, v)]
        for page in (-1, len(pages[0]), 2**31 - 1, -(2**31)):
            spoilt = table.clone()
            spoilt[1, 1] = page
            out, lse = function(q, *pages, lengths, spoilt, *rest)
            assert bool(out[1].isnan().all()) and bool(lse[1].isnan().all())
            assert not out[0].isnan().any() and not lse[0].isnan().any()
        # Pages in which no key is seen need not exist.
        table[0, 0] = -1
        out, _ = function(q, *pages, lengths, table, *rest[:3], 20, *rest[4:])
        assert bool(out[0].isfinite().all())


def test_a_window_has_no_right_end():
    q, k, v, lengths = caches([40, 17], queries=3)
    want = fusewheel.attention_decode(q, k, v, lengths, window=(5, 0))
    for right in (None, -1, 7):
        got = fusewheel.attention_decode(q, k, v, lengths, window=(5, right))
        assert torch.equal(got, want)
    with pytest.raises(RuntimeError, match="right must be a number of keys, or -1"):
        fusewheel.attention_decode(q, k, v, lengths, window=(5, -2))
    with pytest.raises(RuntimeError, match="left must be a number of keys, or -1"):
        fusewheel.attention_decode(q, k, v, lengths, window=(-2, 0))
    with pytest.raises(ValueError, match=r"window must be \(left, right\), got \(1, 2, 3\)"):
        fusewheel.attention_decode(q, k, v, lengths, window=(1, 2, 3))

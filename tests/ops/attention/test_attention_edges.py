"""Attention where something is special: no keys, NaN, large scores, strides, threads, dropout."""

from __future__ import annotations

import math

import fusewheel
import pytest
import torch
from fusewheel.dispatch.operator import Make
from ops.attention.inputs import INFINITY, NAN, inputs, leaves
from oracle import assert_program_as_good_as_eager, emulated, to_dtype
from torch import Tensor

REFERENCE = {o.name: o for o in fusewheel.ops.operators()}["attention"].reference


@pytest.mark.parametrize("shape", [(1, 0, 5, 4), (1, 3, 0, 4), (0, 3, 5, 4), (1, 3, 5, 0)])
def test_nothing(shape):
    batch, queries, keys, size = shape
    given = leaves(*inputs(queries, keys, batch=batch, size=size, value_size=4))
    out, lse = fusewheel.attention(*given, causal=True, return_lse=True)
    assert out.shape == (batch, 3, queries, 4) and lse.shape == (batch, 3, queries)
    if keys == 0:
        assert not out.any() and bool((lse == -INFINITY).all())
    found = torch.autograd.grad(out.sum(), given, materialize_grads=True)
    assert [g.shape for g in found] == [t.shape for t in given]
    assert not any(g.isnan().any() for g in found)


@pytest.mark.parametrize("with_sinks", [False, True])
def test_a_query_without_a_key(dtype, with_sinks):
    """Under a causal mask the first queries of more queries than keys."""
    given = leaves(*inputs(7, 4, dtype=dtype), Make(dtype)(3))
    sinks = given[3] if with_sinks else None
    out, lse = fusewheel.attention(*given[:3], causal=True, sinks=sinks, return_lse=True)
    assert not out[:, :, :3].any()
    if sinks is None:
        assert bool((lse[:, :, :3] == -INFINITY).all())
    else:
        assert torch.equal(lse[0, :, 0], sinks.to(lse.dtype))
    assert bool(lse[:, :, 3:].isfinite().all())
    loss = out.sum() + (lse[:, :, :3].sum() if with_sinks else 0)
    found = torch.autograd.grad(loss, given, materialize_grads=True)
    assert not found[0][:, :, :3].any()
    assert not any(g.isnan().any() for g in found)
    if with_sinks:  # the gradient of the logsumexp goes to the sink
        alone = torch.autograd.grad(
            fusewheel.attention(*given[:3], causal=True, sinks=sinks, return_lse=True)[1][:, :, :3],
            given[3],
            torch.ones_like(lse[:, :, :3]),
        )[0]
        assert torch.equal(alone, torch.full_like(alone, 3.0))


def test_a_mask_is_a_bias():
    q, k, v = inputs(40, 50, batch=2, heads=2)
    mask = torch.rand(2, 1, 40, 50, generator=torch.Generator().manual_seed(0)) > 0.5
    mask[1, 0, 7] = False
    added = torch.zeros(2, 1, 40, 50, dtype=torch.float64).masked_fill(~mask, -INFINITY)
    first = fusewheel.attention(q, k, v, bias=mask, return_lse=True)
    second = fusewheel.attention(q, k, v, bias=added, return_lse=True)
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)
    assert not first[0][1, :, 7].any() and bool((first[1][1, :, 7] == -INFINITY).all())
    fewer = fusewheel.attention(q, k, v, bias=mask[0, 0])
    assert torch.equal(fewer[0], first[0][0])


@pytest.mark.parametrize("junk", [NAN, INFINITY, -INFINITY])
@pytest.mark.parametrize("how", ["window", "mask"])
def test_a_key_that_nobody_sees_does_not_count(dtype, junk, how):
    """Neither in the result nor in gradients, whatever is stored there; others of its tile do."""
    q, k, v = inputs(50, 150, heads=2, dtype=dtype)
    mask = torch.ones(50, 150, dtype=torch.bool)
    mask[:, 75] = False
    options = {"causal": True, "window": (20, 0)} if how == "window" else {"bias": mask}
    spoilt = [t.clone() for t in (k, v)]
    for t in spoilt:
        t[:, :, 75, 3] = junk
    results = []
    for own in ((k, v), spoilt):
        given = leaves(q, *own)
        out, lse = fusewheel.attention(*given, **options, return_lse=True)
        results.append((out, lse, *torch.autograd.grad((out.sum(), lse.sum()), given)))
    for clean, other in zip(*results, strict=True):
        assert torch.equal(other, clean)


@pytest.mark.parametrize("junk", [NAN, INFINITY])
@pytest.mark.parametrize("value_size", [64, 140])
def test_a_value_that_is_no_number_spoils_the_queries_that_see_it(dtype, junk, value_size):
    q, k, v = inputs(150, 150, heads=2, dtype=dtype, value_size=value_size)
    clean = fusewheel.attention(q, k, v, causal=True)
    v[:, :, 100, value_size - 5] = junk
    out, lse = fusewheel.attention(q, k, v, causal=True, return_lse=True)
    assert torch.equal(out[:, :, :100], clean[:, :, :100])
    assert bool(out[:, :, 100:].isnan().all()) and bool(lse.isfinite().all())


def test_nan_stays_in_its_row():
    q, k, v = inputs(150, 150, heads=2)
    q[0, 1, 70, 3] = NAN
    out, lse = fusewheel.attention(q, k, v, causal=True, return_lse=True)
    assert bool(out[0, 1, 70].isnan().all()) and bool(lse[0, 1, 70].isnan())
    assert int(out.isnan().sum()) == 16 and int(lse.isnan().sum()) == 1


def test_one_key_has_no_gradient_of_its_score(dtype):
    """Its share is 1 whatever the score: exactly so."""
    given = leaves(*inputs(4, 1, dtype=dtype, size=150, value_size=300))
    out = fusewheel.attention(*given)
    seeds = Make(dtype, seed=5)(*out.shape)
    found = torch.autograd.grad(out, given, seeds)
    assert torch.equal(out, given[2].expand_as(out))
    assert not found[0].any() and not found[1].any()


@pytest.mark.skipif(emulated(), reason="it is about the exponentials of the CPU kernels")
@pytest.mark.parametrize("factor", [0.25, 4.0, 64.0])
def test_logsumexp_errs_as_documented(dtype, factor):
    """Scores are exact here: quarters of whole numbers."""
    q, k, v = (t.mul(4).round() for t in inputs(130, 600, heads=4, kv_heads=2))
    scores = torch.einsum("bhqd,bhkd->bhqk", q, k.repeat_interleave(2, 1)) / 4 * factor
    given = ((q * factor).to(dtype), k.to(dtype), v.to(dtype))
    lse = fusewheel.attention(*given, return_lse=True)[1]
    allowed = torch.finfo(lse.dtype).eps * (scores.amax(-1).abs() + math.log(601))
    assert bool(((lse - scores.logsumexp(-1)).abs() <= allowed).all())


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_large_scores(sign):
    """Of +-1e4: shares are 0 or 1, nothing overflows."""
    q, k, v = inputs(60, 200, dtype=torch.float32)
    given = leaves(q * 100 * sign, k * 100, v)
    out, lse = fusewheel.attention(*given, return_lse=True)
    eager, exact = (
        REFERENCE(*to_dtype(given, kind), None, None, -1, -1, q.shape[3] ** -0.5, 0.0)
        for kind in (torch.float32, torch.float64)
    )
    assert_program_as_good_as_eager(out, eager[0], exact[0])
    assert_program_as_good_as_eager(lse, eager[1], exact[1])
    assert all(bool(g.isfinite().all()) for g in torch.autograd.grad(out.sum(), given))


def test_any_strides_without_reading_what_lies_between(dtype):
    make = Make(dtype, seed=76)
    given = [make.strided(2, h, n, 9) for h, n in ((4, 133), (2, 140), (2, 140))]
    plain = [t.contiguous() for t in given]
    results = []
    for own in (given, plain):
        own = [t.detach().requires_grad_() for t in own]
        out, lse = fusewheel.attention(*own, causal=True, return_lse=True)
        seeds = Make(dtype, seed=4)(*out.shape)
        results.append((out, lse, *torch.autograd.grad(out, own, seeds)))
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b) and not a.isnan().any()


def test_the_result_lies_like_the_queries():
    q, k, v = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in inputs(6, 7, value_size=5))
    out = fusewheel.attention(q, k, v)
    assert out.transpose(1, 2).is_contiguous()
    assert fusewheel.attention(q.contiguous(), k, v).is_contiguous()


def step(given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    own = leaves(*given)
    out, lse = fusewheel.attention(*own, causal=True, return_lse=True)
    seeds = Make(out.dtype, seed=6)(*out.shape)
    return out, lse, *torch.autograd.grad(out, own, seeds)


@pytest.mark.skipif(emulated(), reason="it is about the threads of the CPU kernels")
def test_the_same_bits_for_any_number_of_threads(dtype):
    given = inputs(700, 700, heads=4, kv_heads=2, size=20, dtype=dtype)
    threads = torch.get_num_threads()
    results = []
    try:
        for count in (1, 2, 3, 7):
            torch.set_num_threads(count)
            results.append(step(given))
    finally:
        torch.set_num_threads(threads)
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            assert torch.equal(a, b)


@pytest.mark.skipif(not emulated(), reason="it is about the threads of the CUDA kernels")
def test_the_same_bits_in_any_order_of_blocks_and_threads(dtype, monkeypatch):
    given = inputs(140, 150, heads=4, kv_heads=2, size=20, dtype=dtype)
    first = step(given)
    for seed in ("1", "2"):
        monkeypatch.setenv("FUSEWHEEL_EMULATION_SEED", seed)
        for a, b in zip(first, step(given), strict=True):
            assert torch.equal(a, b)


def test_a_sequence_does_not_depend_on_the_others():
    q, k, v = inputs(150, 400, batch=3, heads=2, dtype=torch.float32)
    whole = fusewheel.attention(q, k, v, causal=True)
    for b in range(3):
        alone = fusewheel.attention(*(t[b : b + 1] for t in (q, k, v)), causal=True)
        assert torch.equal(whole[b : b + 1], alone)


@pytest.mark.parametrize("group", [9, 17])
def test_heads_that_share_keys_in_several_parts(dtype, group):
    """More than a task has, and positions of several tasks: none takes the place of another."""
    q, k, v = inputs(100, 60, batch=3, heads=2 * group, kv_heads=2, dtype=dtype)
    whole = fusewheel.attention(q, k, v, causal=True, return_lse=True)
    for b in range(3):
        for head in range(2):
            heads = slice(head * group, (head + 1) * group)
            one = q[b : b + 1, heads], k[b : b + 1, head : head + 1], v[b : b + 1, head : head + 1]
            alone = fusewheel.attention(*one, causal=True, return_lse=True)
            for a, c in zip(whole, alone, strict=True):
                assert torch.equal(a[b : b + 1, heads], c)


@pytest.mark.skipif(emulated(), reason="it is about memory that tasks of the CPU kernels share")
def test_a_head_does_not_depend_on_the_others(dtype):
    """So many heads and queries that some wait for the memory of sums of others."""
    given = inputs(700, 300, heads=30, kv_heads=30, size=20, dtype=dtype)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        whole = step(given)
    finally:
        torch.set_num_threads(threads)
    own = leaves(*(t[:, 27:] for t in given))
    out, lse = fusewheel.attention(*own, causal=True, return_lse=True)
    seeds = Make(dtype, seed=6)(1, 30, 700, 20)[:, 27:]
    for a, b in zip(whole, (out, lse, *torch.autograd.grad(out, own, seeds)), strict=True):
        assert torch.equal(a[:, 27:], b)


def test_dropout_drops_shares_and_keeps_their_mean():
    q, k, v = inputs(64, 2000, heads=1, size=4)
    v = torch.ones_like(v)
    torch.manual_seed(0)
    out, lse = fusewheel.attention(q, k, v, dropout_p=0.25, return_lse=True)
    plain, other = fusewheel.attention(q, k, v, return_lse=True)
    torch.testing.assert_close(lse, other)
    # Each share is dropped by itself: what is left of a query's shares varies by their squares.
    shares = (q @ k.mT / 4**0.5).softmax(-1)
    deviations = (out - plain)[..., 0] / (shares.square().sum(-1) * 0.25 / 0.75).sqrt()
    assert deviations.mean().abs() < 5 / 64**0.5 and 0.5 < deviations.std() < 1.5
    given = leaves(q, k, v)
    torch.manual_seed(0)
    again = fusewheel.attention(*given, dropout_p=0.25)
    assert torch.equal(again, out)
    again.sum().backward()
    assert all(t.grad is not None for t in given)
    assert not fusewheel.attention(q, k, v, dropout_p=1.0).any()
    with pytest.raises(ValueError, match="dropout_p must be between 0 and 1"):
        fusewheel.attention(q, k, v, dropout_p=1.5)
    with pytest.raises(RuntimeError, match="k must have the dtype of q"):
        fusewheel.attention(q, k.float(), v, dropout_p=0.5)


def test_only_parameters_of_the_window_that_are_numbers_limit():
    q, k, v = inputs(9, 12)
    want = fusewheel.attention(q, k, v, causal=True)
    for window in ((None, 0), (-1, 0), (11, 0), (2**40, 0)):
        assert torch.equal(fusewheel.attention(q, k, v, window=window), want)
    assert torch.equal(fusewheel.attention(q, k, v, causal=True, window=(None, 7)), want)
    with pytest.raises(ValueError, match=r"^attention: window must be \(left, right\), got \(1,\)"):
        fusewheel.attention(q, k, v, window=(1,))
    with pytest.raises(RuntimeError, match="left must be a number of keys, or -1"):
        fusewheel.attention(q, k, v, window=(-2, 0))
    with pytest.raises(RuntimeError, match="right must be a number of keys, or -1"):
        fusewheel.attention(q, k, v, causal=True, window=(0, -5))

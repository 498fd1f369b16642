"""Attention beside PyTorch's, the formula in float64, and a loop over the keys of each query."""

from __future__ import annotations

import fusewheel
import pytest
import torch
import torch.nn.functional as F
from fusewheel.dispatch.operator import Make
from fuzz.draw import Draw
from fuzz.shapes import row_values
from oracle import assert_as_good_as_eager, emulated
from torch import Tensor

OPERATORS = {o.name: o for o in fusewheel.ops.operators()}
INFINITY = float("inf")
NAN = float("nan")


def inputs(
    queries: int,
    keys: int,
    *,
    batch: int = 1,
    heads: int = 3,
    kv_heads: int = 1,
    size: int = 16,
    value_size: int | None = None,
    dtype: torch.dtype = torch.float64,
    seed: int = 71,
) -> tuple[Tensor, Tensor, Tensor]:
    make = Make(dtype, seed=seed)
    value_size = size if value_size is None else value_size
    return (
        make(batch, heads, queries, size),
        make(batch, kv_heads, keys, size),
        make(batch, kv_heads, keys, value_size),
    )


def leaves(*tensors: Tensor) -> list[Tensor]:
    return [t.detach().clone().requires_grad_() for t in tensors]


def seen(queries: int, keys: int, causal: bool, window: tuple[int, int] = (-1, -1)) -> Tensor:
    """Which keys each query sees, pair by pair."""
    mask = torch.zeros(queries, keys, dtype=torch.bool)
    for i in range(queries):
        at = i + keys - queries
        for j in range(keys):
            left = window[0] < 0 or j >= at - window[0]
            right = window[1] < 0 or j <= at + window[1]
            mask[i, j] = left and right and not (causal and j > at)
    return mask


def query_by_query(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The definition: for each query only the keys that it sees exist."""
    batch, heads, queries, size = q.shape
    group = heads // k.shape[1]
    outs, sums = [], []
    for b in range(batch):
        for h in range(heads):
            for i in range(queries):
                own = mask[i].nonzero().squeeze(1)
                z = k[b, h // group, own] @ q[b, h, i] * size**-0.5
                z = softcap * (z / softcap).tanh() if softcap else z
                z = z if bias is None else z + bias[b, h, i, own]
                z = z if sinks is None else torch.cat((z, sinks[h : h + 1]))
                lse = z.logsumexp(0) if len(z) else z.new_tensor(-INFINITY)
                shares = (z[: len(own)] - lse).exp()
                outs.append(shares @ v[b, h // group, own])
                sums.append(lse)
    out = torch.stack(outs).view(batch, heads, queries, -1)
    return out, torch.stack(sums).view(batch, heads, queries)


def assert_same_gradients(function, other, tensors, atol=1e-10) -> None:
    results = []
    for f in (function, other):
        given = leaves(*tensors)
        out, lse = f(*given)
        lse = torch.where(lse == -INFINITY, 0.0, lse)
        loss = (out * out.detach().cos()).sum() + (lse * lse.detach().sin()).sum()
        found = torch.autograd.grad(loss, given, materialize_grads=True)
        results.append((out, lse, *found))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=atol)


LENGTHS = [(1, 1), (5, 5), (3, 8), (8, 3), (1, 140), (130, 131), (97, 260)]


@pytest.mark.parametrize(("queries", "keys"), LENGTHS)
@pytest.mark.parametrize(
    ("causal", "window"),
    [(False, None), (True, None), (False, (3, 1)), (True, (2, None)), (False, (None, 4))],
)
def test_is_its_definition(queries, keys, causal, window):
    q, k, v = inputs(queries, keys, heads=2, size=5, value_size=3)
    limits = (-1, -1) if window is None else tuple(-1 if w is None else w for w in window)
    mask = seen(queries, keys, causal, limits)

    def own(q, k, v):
        return fusewheel.attention(q, k, v, causal=causal, window=window, return_lse=True)

    assert_same_gradients(own, lambda *given: query_by_query(*given, mask), (q, k, v))


@pytest.mark.parametrize("with_sinks", [False, True])
@pytest.mark.parametrize("softcap", [0.0, 1.5])
@pytest.mark.parametrize("bias_shape", [None, (2, 4, 20, 30), (1, 4, 1, 30), (2, 1, 20, 1)])
def test_options_together(with_sinks, softcap, bias_shape):
    make = Make(torch.float64, seed=72)
    q, k, v = inputs(20, 30, batch=2, heads=4, kv_heads=2, size=8, seed=73)
    tensors = [q, k, v]
    tensors += [make(4)] if with_sinks else []
    tensors += [make(*bias_shape)] if bias_shape else []
    mask = seen(20, 30, True, (9, -1))

    def named(rest):
        rest = list(rest)
        sinks = rest.pop(0) if with_sinks else None
        return {"sinks": sinks, "bias": rest.pop(0) if bias_shape else None, "softcap": softcap}

    def own(q, k, v, *rest):
        options = named(rest)
        return fusewheel.attention(q, k, v, causal=True, window=(9, 0), return_lse=True, **options)

    def definition(q, k, v, *rest):
        options = named(rest)
        if bias_shape:
            options["bias"] = options["bias"].expand(2, 4, 20, 30)
        return query_by_query(q, k, v, mask, **options)

    assert_same_gradients(own, definition, tensors)


def by_sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)


@pytest.mark.parametrize(
    ("queries", "keys", "size"), [(255, 255, 64), (123, 255, 80), (1, 500, 128), (200, 129, 7)]
)
def test_as_good_as_pytorchs(dtype, queries, keys, size):
    given = inputs(queries, keys, heads=6, kv_heads=2, size=size, dtype=dtype)
    causal = queries <= keys
    mask = seen(queries, keys, causal) if causal else None
    own = fusewheel.attention(*given, causal=causal)
    exact = by_sdpa(*(t.double() for t in given), mask)
    assert_as_good_as_eager(own, by_sdpa(*given, mask), exact)


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
def test_a_value_that_is_no_number_spoils_the_queries_that_see_it(dtype, junk):
    q, k, v = inputs(150, 150, heads=2, dtype=dtype)
    clean = fusewheel.attention(q, k, v, causal=True)
    v[:, :, 100, 3] = junk
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


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_large_scores(sign):
    """Of +-1e4: shares are 0 or 1, nothing overflows."""
    q, k, v = inputs(60, 200, dtype=torch.float32)
    given = leaves(q * 100 * sign, k * 100, v)
    out, lse = fusewheel.attention(*given, return_lse=True)
    exact = fusewheel.attention(*(t.double() for t in given), return_lse=True)
    torch.testing.assert_close(lse.double(), exact[1], rtol=1e-6, atol=0)
    torch.testing.assert_close(out.double(), exact[0], rtol=0, atol=1e-2)
    assert all(bool(g.isfinite().all()) for g in torch.autograd.grad(out.sum(), given))


def test_a_loss_of_the_logsumexp_alone():
    given = leaves(*inputs(33, 140))
    lse = fusewheel.attention(*given, return_lse=True)[1]
    found = torch.autograd.grad(lse.sin().sum(), given)
    assert found[0].any() and found[1].any() and not found[2].any()
    own = leaves(*given)
    want = torch.logsumexp(own[0] @ own[1].mT * 0.25, -1)
    expected = torch.autograd.grad(want.sin().sum(), own[:2])
    torch.testing.assert_close(found[:2], expected)


def test_derivatives():
    make = Make(torch.float64, seed=75)
    q, k, v = inputs(3, 4, heads=2, size=2, value_size=3)
    given = leaves(q, k, v, make(2), make(1, 2, 1, 4))

    def function(q, k, v, sinks, bias):
        return fusewheel.attention(
            q, k, v, window=(2, 0), softcap=2.0, sinks=sinks, bias=bias, return_lse=True
        )

    assert torch.autograd.gradcheck(function, given)
    assert torch.autograd.gradgradcheck(function, given)


def test_gradients_are_as_good_as_eager_in_long_rows(dtype):
    """Several blocks of keys and queries; eager are PyTorch's operators in the same dtype."""
    given = inputs(200, 300, heads=2, size=24, dtype=dtype)
    results = []
    for function, dtypes in (
        (OPERATORS["attention"].overload, dtype),
        (OPERATORS["attention"].reference, dtype),
        (OPERATORS["attention"].reference, torch.float64),
    ):
        own = leaves(*(t.to(dtypes) for t in given))
        out, lse = function(*own, None, None, 170, 0, 24**-0.5, 0.0)
        seeds = Make(dtype, seed=3)(*out.shape).to(dtypes), torch.ones_like(lse)
        results.append(torch.autograd.grad((out, lse), own, seeds))
    for own, eager, exact in zip(*results, strict=True):
        assert_as_good_as_eager(own, eager, exact)


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


@pytest.mark.skipif(emulated(), reason="it is about the threads of the CPU kernels")
def test_the_same_bits_for_any_number_of_threads(dtype):
    given = inputs(700, 700, heads=4, kv_heads=2, size=20, dtype=dtype)
    threads = torch.get_num_threads()
    results = []
    try:
        for count in (1, 2, 3, 7):
            torch.set_num_threads(count)
            own = leaves(*given)
            out, lse = fusewheel.attention(*own, causal=True, return_lse=True)
            seeds = Make(dtype, seed=6)(*out.shape)
            results.append((out, lse, *torch.autograd.grad(out, own, seeds)))
    finally:
        torch.set_num_threads(threads)
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            assert torch.equal(a, b)


def test_a_sequence_does_not_depend_on_the_others():
    q, k, v = inputs(150, 400, batch=3, heads=2, dtype=torch.float32)
    whole = fusewheel.attention(q, k, v, causal=True)
    for b in range(3):
        alone = fusewheel.attention(*(t[b : b + 1] for t in (q, k, v)), causal=True)
        assert torch.equal(whole[b : b + 1], alone)


def test_dropout_drops_shares_and_keeps_their_mean():
    q, k, v = inputs(64, 2000, heads=1, size=4)
    v = torch.ones_like(v)
    torch.manual_seed(0)
    out, lse = fusewheel.attention(q, k, v, dropout_p=0.25, return_lse=True)
    plain, other = fusewheel.attention(q, k, v, return_lse=True)
    torch.testing.assert_close(lse, other)
    assert not torch.allclose(out, plain, atol=1e-3)
    torch.testing.assert_close(out.mean(), plain.mean(), rtol=0.02, atol=0)
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
    with pytest.raises(RuntimeError, match="left must be a number of keys, or -1"):
        fusewheel.attention(q, k, v, window=(-2, 0))
    with pytest.raises(RuntimeError, match="right must be a number of keys, or -1"):
        fusewheel.attention(q, k, v, causal=True, window=(0, -5))


def any_arguments(d: Draw):
    heads, group = d.integer(1, 3), d.integer(1, 3)
    batch, queries, keys = d.integer(0 if d.rarely() else 1, 2), d.size(1, 130), d.size(1, 130)
    size, value_size = d.size(1, 65), d.size(1, 65)
    scale = d.choice(size**-0.5, 1.0, 0.1)
    scores = (batch, heads * group, queries, keys)
    bias: Tensor | None = None
    if d.flag():
        shape = tuple(1 if d.rarely() else n for n in scores)
        bias = d.tensor(*shape, scale=1.0)
        bias = d.lay((bias > 0).contiguous()) if d.flag() else bias
    window = d.choice((-1, -1), (-1, 0), (5, 0), (40, 3), (0, 0))
    return (
        d.tensor(batch, heads * group, queries, size, scale=d.choice(1.0, 1e-3, 2.0)),
        d.tensor(batch, heads, keys, size, scale=d.choice(1.0, 1e-3, 2.0)),
        d.tensor(batch, heads, keys, value_size),
        d.optional(heads * group),
        bias,
        *window,
        scale,
        d.choice(0.0, 0.0, 2.0),
    )


def any_backward_arguments(d: Draw):
    d.special = None  # the share of a key that is no number is its formula's business
    given = any_arguments(d)
    out, lse = OPERATORS["attention"].reference(*given)
    grad = d.tensor(*out.shape)
    return grad, row_values(d, *lse.shape), *given[:5], d.lay(out), d.lay(lse), *given[5:]


FUZZ = {"attention": any_arguments, "attention_backward": any_backward_arguments}

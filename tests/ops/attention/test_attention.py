"""Attention beside PyTorch's, the formula in float64, and a loop over the keys of each query."""

from __future__ import annotations

import fusewheel
import pytest
import torch
import torch.nn.functional as F
from fusewheel.dispatch.operator import Make
from fuzz.draw import Draw
from fuzz.shapes import row_values
from neighbours import assert_call_as_good_as_eager, compute
from ops.attention.inputs import INFINITY, inputs, leaves
from oracle import assert_as_good_as_eager
from torch import Tensor

OPERATORS = {o.name: o for o in fusewheel.ops.operators()}


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


def assert_same_gradients(function, other, tensors) -> None:
    results = []
    for f in (function, other):
        given = leaves(*tensors)
        out, lse = f(*given)
        lse = torch.where(lse == -INFINITY, 0.0, lse)
        loss = (out * out.detach().cos()).sum() + (lse * lse.detach().sin()).sum()
        found = torch.autograd.grad(loss, given, materialize_grads=True)
        results.append((out, lse, *found))
    for a, b in zip(*results, strict=True):
        assert_as_good_as_eager(a, b, b)


LENGTHS = [(1, 1), (5, 5), (3, 8), (8, 3), (1, 140), (130, 131), (97, 260), (300, 2)]


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


def test_without_features_it_is_the_mean_of_what_is_seen():
    q, k, v = inputs(20, 30, heads=2, size=0, value_size=16)
    mask = seen(20, 30, True, (3, -1))

    def own(v):
        return fusewheel.attention(
            q, k, v, causal=True, window=(3, None), scale=1.0, return_lse=True
        )

    def definition(v):
        count = mask.sum(-1, keepdim=True).double()
        return (mask / count @ v).expand(1, 2, 20, 16), count.squeeze(-1).log().expand(1, 2, 20)

    assert_same_gradients(own, definition, (v,))


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
    """The shares of the keys are rounded to bfloat16, as ours; not to float16."""
    kind = torch.nn.attention.SDPBackend
    backend = kind.FLASH_ATTENTION if q.dtype == torch.bfloat16 else kind.MATH
    with torch.nn.attention.sdpa_kernel(backend):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)


@pytest.mark.parametrize(
    ("queries", "keys", "size"), [(255, 255, 64), (123, 255, 80), (1, 500, 128), (200, 129, 7)]
)
def test_as_good_as_pytorchs(dtype, queries, keys, size):
    given = inputs(queries, keys, heads=6, kv_heads=2, size=size, dtype=dtype)
    causal = queries <= keys
    mask = seen(queries, keys, causal) if causal else None
    assert_call_as_good_as_eager(
        compute,
        lambda q, k, v: fusewheel.attention(q, k, v, causal=causal),
        lambda q, k, v: by_sdpa(q, k, v, mask),
        given,
        "result",
    )


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
    seeds = Make(dtype, seed=3)(1, 2, 200, 24), torch.ones(1, 2, 200)

    def gradients(function, tensors):
        own = leaves(*tensors)
        results = function(*own, None, None, 170, 0, 24**-0.5, 0.0)
        grads = [g.to(r.dtype) for g, r in zip(seeds, results, strict=True)]
        return torch.autograd.grad(results, own, grads)

    operator = OPERATORS["attention"]
    functions = operator.overload, operator.reference
    assert_call_as_good_as_eager(gradients, *functions, given, "gradient")


def blocks_hidden(queries: int, keys: int) -> Tensor:
    """A mask of blocks of 32 queries and 64 keys, half of them hidden, and one odd pair."""
    rows, columns = (torch.arange(n) // block for n, block in ((queries, 32), (keys, 64)))
    mask = (rows.unsqueeze(1) * 3 + columns) % 4 < 2
    mask[70, 3] = ~mask[70, 3]
    return mask.view(1, 1, queries, keys)


def padding_hidden(keys: int) -> Tensor:
    """Masks of two sequences, padded after their keys and before them."""
    key = torch.arange(keys)
    return torch.stack((key < 100, key >= keys - 30)).view(2, 1, 1, keys)


@pytest.mark.parametrize("hidden", ["blocks", "padding"])
def test_keys_that_a_mask_hides_by_the_block(dtype, hidden):
    mask = blocks_hidden(200, 300) if hidden == "blocks" else padding_hidden(300)
    given = inputs(200, 300, batch=2, heads=2, size=8, dtype=dtype)
    seeds = Make(dtype, seed=3)(2, 2, 200, 8), torch.ones(2, 2, 200)

    def gradients(function, tensors):
        own = leaves(*tensors)
        results = function(*own, None, mask, -1, -1, 8**-0.5, 0.0)
        grads = [g.to(r.dtype) for g, r in zip(seeds, results, strict=True)]
        return results[0], *torch.autograd.grad(results, own, grads)

    operator = OPERATORS["attention"]
    functions = operator.overload, operator.reference
    assert_call_as_good_as_eager(gradients, *functions, given, "result and gradient")


def test_a_bias_of_minus_infinity_hides_keys_that_are_no_numbers(dtype):
    """Wherever the key lies in a block that is computed, as a mask does."""
    q, k, v = inputs(40, 150, batch=2, heads=2, size=8, dtype=dtype)
    mask = padding_hidden(150)
    added = torch.zeros(mask.shape, dtype=dtype).masked_fill(~mask, -INFINITY)
    clean = fusewheel.attention(q, k, v, bias=added)
    k[~mask.view(2, 1, 150)] = float("nan")
    assert torch.equal(fusewheel.attention(q, k, v, bias=added), clean)


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
    window = d.choice((-1, -1), (-1, 0), (5, 0), (40, 3), (0, 0), (7, -1), (-1, 4), (300, 0))
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

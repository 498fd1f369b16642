"""Packed attention where little is there to attend to, and bounds that are wrong."""

from __future__ import annotations

import fusewheel
import pytest
import torch
from fusewheel.dispatch.operator import Make
from ops.attention.inputs import INFINITY, NAN, leaves
from ops.attention.test_attention_varlen import OPERATORS, both, packed, with_gradients
from oracle import emulated


@pytest.mark.parametrize("junk", [NAN, INFINITY])
@pytest.mark.parametrize("index", [0, 4, 6])
def test_what_is_no_number_keeps_to_its_sequence(dtype, junk, index):
    bounds = both()
    clean = packed(dtype=dtype)
    spoilt = [t.clone() for t in clean]
    own = []
    for tensor, of in zip(spoilt, (bounds[0], bounds[1], bounds[1]), strict=True):
        mask = torch.zeros(len(tensor), dtype=torch.bool)
        mask[of[index] : of[index + 1]] = True
        tensor[mask] = junk
        own.append(mask)

    def function(q, k, v):
        return fusewheel.attention_varlen(q, k, v, *bounds, causal=True, return_lse=True)

    masks = [own[0], own[0], *own]  # the logsumexp has heads first
    pairs = zip(*(with_gradients(function, *given) for given in (clean, spoilt)), strict=True)
    for i, (a, b) in enumerate(pairs):
        rows = (a.T, b.T) if i == 1 else (a, b)
        assert torch.equal(*(t[~masks[i]] for t in rows))
        assert rows[1][masks[i]].isnan().any()


def test_queries_without_keys(dtype):
    bounds = both((4, 3), (0, 5))
    given = leaves(*packed((4, 3), (0, 5), dtype=dtype), Make(dtype)(4))
    out, lse = fusewheel.attention_varlen(*given[:3], *bounds, return_lse=True)
    assert not out[:4].any() and bool((lse[:, :4] == -INFINITY).all())
    assert out[4:].all() and bool(lse[:, 4:].isfinite().all())
    found = torch.autograd.grad(out.sum(), given[:3])
    assert not found[0][:4].any() and found[0][4:].all()
    assert all(bool(g.isfinite().all()) for g in found)
    out, lse = fusewheel.attention_varlen(*given[:3], *bounds, sinks=given[3], return_lse=True)
    assert not out[:4].any()
    assert torch.equal(lse[:, :4], given[3].to(lse.dtype).unsqueeze(1).expand(4, 4))
    (grad_sinks,) = torch.autograd.grad(lse[:, :4].sum(), given[3])
    assert torch.equal(grad_sinks, torch.full_like(grad_sinks, 4.0))


@pytest.mark.parametrize(
    ("queries", "keys"), [((), ()), ((0,), (0,)), ((0, 0), (0, 3)), ((2, 0), (0, 0))]
)
def test_nothing(queries, keys):
    bounds = both(queries, keys)

    def own(q, k, v):
        return fusewheel.attention_varlen(q, k, v, *bounds, causal=True, return_lse=True)

    out, lse, *grads = with_gradients(own, *packed(queries, keys))
    assert out.shape == (sum(queries), 4, 24) and lse.shape == (4, sum(queries))
    assert not out.any() and bool((lse == -INFINITY).all())
    assert not any(g.any() for g in grads)


def test_keys_without_queries_have_no_gradient():
    bounds = both((0, 3, 0), (200, 4, 130))

    def own(q, k, v):
        return fusewheel.attention_varlen(q, k, v, *bounds, return_lse=True)

    *_, grad_k, grad_v = with_gradients(own, *packed((0, 3, 0), (200, 4, 130)))
    for grad in (grad_k, grad_v):
        assert grad[200:204].all() and not grad[:200].any() and not grad[204:].any()


def test_bounds_of_either_dtype_and_any_stride():
    given = packed()
    want = fusewheel.attention_varlen(*given, *both())
    of_queries, of_keys = both(dtype=torch.int64)
    for bounds in ((of_queries, of_keys), (of_queries, of_keys.int()), (of_queries.int(), of_keys)):
        assert torch.equal(fusewheel.attention_varlen(*given, *bounds), want)
        apart = [torch.stack((t, t - 7), 1)[:, 0] for t in bounds]
        assert torch.equal(fusewheel.attention_varlen(*given, *apart), want)


WRONG = [
    ([1, 4, 7], "begin with 0, got 1"),
    ([-1, 4, 7], "begin with 0, got -1"),
    ([0, 5, 4, 7], "not fall, got 4 after 5"),
    ([0, -(2**31), 7], "not fall, got -2147483648 after 0"),
    ([0, 2**31 - 1, 7], "not fall, got 7 after 2147483647"),
    ([0, 4, 8], "end with 7, the size of dimension 0 of {rows}, got 8"),
    ([0, 4, 6], "end with 7, the size of dimension 0 of {rows}, got 6"),
    ([0], "end with 7, the size of dimension 0 of {rows}, got 0"),
]


@pytest.mark.parametrize("which", ["q", "k"])
@pytest.mark.parametrize(("numbers", "message"), WRONG)
def test_wrong_bounds_are_refused(which, numbers, message):
    """By the CPU kernel before it reads anything else, and by the reference. A GPU gives NaN."""
    wrong = torch.tensor(numbers, dtype=torch.int32)
    good = torch.linspace(0, 7, len(numbers)).int() if len(numbers) > 1 else wrong
    bounds = (wrong, good) if which == "q" else (good, wrong)
    if len(numbers) == 1 and which == "k":
        bounds = (torch.zeros(1, dtype=torch.int32),) * 2
    tokens = 0 if len(numbers) == 1 and which == "k" else 7
    make = Make()
    q, k = make(tokens, 2, 4), make(7, 2, 4)
    rest = (make(2), -1, -1, 0.5, 0.0)
    lse = torch.zeros(2, tokens)
    text = f": cu_seqlens_{which} must {message.format(rows=which)}"
    for name, given in (
        ("attention_varlen", (q, k, k, *bounds, *rest)),
        ("attention_varlen_backward", (q, lse, q, k, k, *bounds, rest[0], q, lse, *rest[1:])),
    ):
        functions = [OPERATORS[name].overload, OPERATORS[name].reference]
        if emulated():
            results = functions.pop(0)(*given)
            assert all(bool(t.isnan().all()) for t in results if tokens or t is not results[-1])
        for function in functions:
            with pytest.raises(RuntimeError) as caught:
                function(*given)
            assert str(caught.value) == name + text


def test_more_sequences_than_a_block_has_threads():
    lengths = [i % 3 for i in range(700)]
    total = sum(lengths)
    bounds = both(lengths, lengths)
    given = packed(lengths, lengths, heads=1, kv_heads=1, size=4, value_size=4)

    def own(q, k, v):
        return fusewheel.attention_varlen(q, k, v, *bounds, return_lse=True)

    def by_formula(q, k, v):
        number = torch.arange(700).repeat_interleave(torch.tensor(lengths))
        bias = number.unsqueeze(-1) == number
        rows = (t.transpose(0, 1).unsqueeze(0) for t in (q, k, v))
        out, lse = fusewheel.attention(*rows, bias=bias.view(1, 1, total, total), return_lse=True)
        return out.squeeze(0).transpose(0, 1), lse.squeeze(0)

    torch.testing.assert_close(with_gradients(own, *given), with_gradients(by_formula, *given))

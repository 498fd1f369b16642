from functools import reduce

import fusewheel
import pytest
import torch
from fusewheel.dispatch.operator import Make
from fuzz.draw import Draw
from fuzz.shapes import any_rows, row_values
from oracle import assert_as_good_as_eager
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

OPERATORS = {o.name: o for o in fusewheel.ops.operators()}
INFINITY = float("inf")
NAN = float("nan")


def attention(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """The formula, and the logsumexp of its scores."""
    scores = (q @ k.transpose(-1, -2)) / q.shape[-1] ** 0.5
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


def parts(*shape: int, seed: int = 51) -> tuple[Tensor, ...]:
    make = Make(torch.float64, seed=seed)
    shape = shape or (2, 3, 8)
    return make(*shape), make(*shape[:-1]), make(*shape), make(*shape[:-1])


def leaves(*tensors: Tensor) -> list[Tensor]:
    return [t.detach().clone().requires_grad_() for t in tensors]


@pytest.mark.parametrize("cut", [1, 5, 16])
def test_is_attention_to_all_keys(cut):
    make = Make(torch.float64, seed=50)
    q, k, v = make(2, 3, 4, 8), make(2, 3, 17, 8), make(2, 3, 17, 8)
    results = []
    for merged in (False, True):
        given = leaves(q, k, v)
        if merged:
            own, *rest = given
            pieces = zip(*(t.split([cut, 17 - cut], 2) for t in rest), strict=True)
            first, second = (attention(own, *piece) for piece in pieces)
            found = fusewheel.merge_attention(*first, *second)
        else:
            found = attention(*given)
        loss = sum((t.sin() * (i + 1)).sum() for i, t in enumerate(found))
        results.append((*found, *torch.autograd.grad(loss, given)))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("apart", [0.0, 5.0, 20.0, 54.75])
def test_a_small_part_counts_beside_a_logsumexp_of_zero(apart):
    """What it adds is lost in a sum with 1, in the reference too, which judges the kernels."""
    out, other = torch.ones(3, 4), torch.ones(3, 4)
    values, others = torch.zeros(3), torch.full((3,), -apart)
    exact = torch.log1p(torch.exp(-torch.tensor(apart, dtype=torch.float64)))
    for kind in (torch.float32, torch.float64):
        given = [t.to(kind) for t in (out, values, other, others)]
        eager = torch.logaddexp(given[1], given[3]) / exact
        for function in (fusewheel.merge_attention, OPERATORS["merge_attention"].reference):
            found = function(*given)[1] / exact  # the result may be far below 1
            assert_as_good_as_eager(found.to(kind), eager.to(kind), torch.ones(3).double())


def test_the_parts_may_be_swapped_and_grouped_as_one_likes():
    some = [parts(seed=seed)[:2] for seed in range(3)]

    def merge(a, b):
        return fusewheel.merge_attention(*a, *b)

    want = reduce(merge, some)
    for other in (reduce(merge, some[::-1]), merge(some[0], merge(some[1], some[2]))):
        torch.testing.assert_close(other, want)


def test_the_last_bits_of_a_small_share(dtype):
    """With a logsumexp of 1000 float32 has few bits left of what `total` differs by."""
    make = Make(dtype)
    out, other = make(50, 64), make(50, 64)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    values = torch.full((50,), 1000.0, dtype=wide)
    others = values - torch.linspace(0, 20, 50, dtype=wide)
    got = fusewheel.merge_attention(out, values, other, others)[0]
    exact = fusewheel.merge_attention(*(t.double() for t in (out, values, other, others)))[0]
    share = (others.double() - values.double()).sigmoid().unsqueeze(-1)
    torch.testing.assert_close(exact, out.double() * (1 - share) + other.double() * share)
    # The difference is exact in float32: eager's share is as good as any.
    narrow = (others - values).sigmoid().unsqueeze(-1)
    eager = out * (1 - narrow) + other * narrow
    assert_as_good_as_eager(got, eager.to(dtype), exact)


def test_the_logsumexp_to_the_last_bits():
    others = -torch.cat((torch.linspace(0, 30, 10001), torch.tensor([90.0, 200.0])))
    out, values = torch.ones(len(others), 1), torch.zeros_like(others)
    for given in ((out, values, out, others), (out, others, out, values)):
        got = fusewheel.merge_attention(*given)[1].double()
        exact = others.double().exp().log1p()
        spacing = exact * torch.finfo(torch.float32).eps
        assert ((got - exact).abs() <= 1.5 * spacing + 1e-45).all()


@pytest.mark.parametrize("junk", [0.0, NAN, INFINITY, -INFINITY])
@pytest.mark.parametrize("swapped", [False, True])
def test_a_part_without_keys_counts_for_nothing(dtype, junk, swapped):
    make = Make(dtype)
    out = make(4, 9)
    values = make(4).to(torch.float64 if dtype == torch.float64 else torch.float32)
    seen = leaves(out, values)
    unseen = leaves(torch.full_like(out, junk), torch.full_like(values, -INFINITY))
    given = [*unseen, *seen] if swapped else [*seen, *unseen]
    merged = fusewheel.merge_attention(*given)
    for got, want in zip(merged, seen, strict=True):
        assert torch.equal(got, want)
    seeds = make(4, 9), torch.ones_like(values)
    found = torch.autograd.grad(merged, [*seen, *unseen], seeds)
    assert torch.equal(found[0], seeds[0]) and torch.equal(found[1], seeds[1])
    assert not found[2].any() and not found[3].any()


def test_nobody_has_seen_a_key():
    out, values, other, others = parts()
    for tensor in (values, others):
        tensor[1] = -INFINITY
    out[1], other[1] = NAN, INFINITY
    given = leaves(out, values, other, others)
    merged, total = fusewheel.merge_attention(*given)
    assert torch.equal(merged[1], torch.zeros(3, 8, dtype=torch.float64))
    assert (total[1] == -INFINITY).all() and total[0].isfinite().all()
    first = torch.autograd.grad(merged.sin().sum() + total[0].sum(), given, create_graph=True)
    assert all(not g[1].any() and g[0].all() for g in first)
    second = torch.autograd.grad(sum(g.square().sum() for g in first), given)
    assert all(not g[1].any() and g.isfinite().all() for g in second)


def test_keys_that_some_queries_do_not_see_have_second_derivatives():
    out, values, other, others = parts()
    values[0, 1], others[1, 2] = -INFINITY, -INFINITY
    out[0, 1], other[1, 2] = NAN, NAN
    seen = [t.isfinite() for t in (out, values, other, others)]

    def counted(*given):
        parts = (
            torch.where(mask, t, fixed)
            for mask, t, fixed in zip(seen, given, (out, values, other, others), strict=True)
        )
        return fusewheel.merge_attention(*parts)

    given = leaves(*(t.nan_to_num(neginf=0.0) for t in (out, values, other, others)))
    assert torch.autograd.gradcheck(counted, given)
    assert torch.autograd.gradgradcheck(counted, given)


@pytest.mark.parametrize("wrong", [NAN, INFINITY])
@pytest.mark.parametrize("index", [1, 3])
def test_a_logsumexp_that_is_no_number_spoils_its_row(wrong, index):
    given = parts()
    given[index][1, 2] = wrong
    found = fusewheel.merge_attention(*given)
    reference = {o.name: o for o in fusewheel.ops.operators()}["merge_attention"].reference
    for result in (found, reference(*given)):
        for t in result:
            assert t[1, 2].isnan().all() and t.isnan().sum() == t[1, 2].numel()


@pytest.mark.parametrize("order", [(0, 2, 1, 3), (2, 0, 1, 3), (1, 2, 0, 3)])
def test_any_order_of_memory_is_read_and_kept_without_a_copy(order):
    given = parts(2, 4, 3, 16)
    back = [order.index(d) for d in range(4)]
    turned = [t.permute(order[: t.dim()]).contiguous().permute(back[: t.dim()]) for t in given]
    want = leaves(*given)
    got = leaves(*turned)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        merged = fusewheel.merge_attention(*turned)
    names = {event.key for event in profiler.key_averages()}
    assert "fusewheel::merge_attention" in names
    assert not names & {"aten::contiguous", "aten::clone", "aten::copy_"}
    assert merged[0].stride() == turned[0].stride() and merged[1].is_contiguous()
    expected = fusewheel.merge_attention(*want)
    assert all(torch.equal(a, b) for a, b in zip(merged, expected, strict=True))
    seeds = parts(2, 4, 3, 16, seed=53)[:2]
    first = torch.autograd.grad(fusewheel.merge_attention(*got), got, seeds)
    second = torch.autograd.grad(expected, want, seeds)
    for a, b in zip(first, second, strict=True):
        torch.testing.assert_close(a, b)


def test_autocast_leaves_the_logsumexp_alone():
    make = Make(torch.float32)
    out, values, other, others = make(4, 8).bfloat16(), make(4), make(4, 8), make(4)
    with torch.autocast("cpu", torch.bfloat16):
        same = fusewheel.merge_attention(out, values, other.bfloat16(), others)
        widest = fusewheel.merge_attention(out, values, other, others)
    assert (same[0].dtype, same[1].dtype) == (torch.bfloat16, torch.float32)
    assert torch.equal(widest[0], fusewheel.merge_attention(out.float(), values, other, others)[0])


def test_one_unused_result_is_no_obstacle():
    for index in (0, 1):
        given = leaves(*parts())
        fusewheel.merge_attention(*given)[index].sum().backward()
        assert given[1].grad.any() and given[0].grad.any() == (index == 0)


def any_arguments(d: Draw):
    shape = any_rows(d)
    first, second = ((d.tensor(*shape), row_values(d, *shape[:-1])) for _ in range(2))
    return *first, *second


def any_backward_arguments(d: Draw):
    given = any_arguments(d)
    return d.tensor(*given[0].shape), row_values(d, *given[1].shape), *given


FUZZ = {"merge_attention": any_arguments, "merge_attention_backward": any_backward_arguments}

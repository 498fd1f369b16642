"""Attention of packed sequences: each of them is `attention` of this sequence alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import fusewheel
import pytest
import torch
from fusewheel.dispatch.operator import Make
from fusewheel.ops.attention._attention_varlen import bounds_of
from fuzz.draw import Draw
from ops.attention.inputs import leaves
from oracle import emulated
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

OPERATORS = {o.name: o for o in fusewheel.ops.operators()}
# More queries than keys, more keys than queries, more than a block of each, and none.
QUERIES = (5, 0, 150, 3, 97, 1, 9)
KEYS = (5, 4, 130, 0, 260, 140, 7)
OPTIONS: list[dict[str, Any]] = [
    {},
    {"causal": True},
    {"causal": True, "window": (40, None), "softcap": 2.0},
    {"window": (3, 100), "scale": 0.5},
]


def packed(
    queries: Sequence[int] = QUERIES,
    keys: Sequence[int] = KEYS,
    *,
    heads: int = 4,
    kv_heads: int = 2,
    size: int = 20,
    value_size: int = 24,
    dtype: torch.dtype = torch.float64,
    seed: int = 81,
) -> tuple[Tensor, Tensor, Tensor]:
    make = Make(dtype, seed=seed)
    return (
        make(sum(queries), heads, size),
        make(sum(keys), kv_heads, size),
        make(sum(keys), kv_heads, value_size),
    )


def both(
    queries: Sequence[int] = QUERIES, keys: Sequence[int] = KEYS, dtype: torch.dtype = torch.int32
) -> tuple[Tensor, Tensor]:
    return bounds_of(queries, "cpu", dtype), bounds_of(keys, "cpu", dtype)


def alone(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    queries: Sequence[int] = QUERIES,
    keys: Sequence[int] = KEYS,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """Sequence by sequence by `attention`."""
    outs, sums = [], []
    parts = (q.split(list(queries)), k.split(list(keys)), v.split(list(keys)))
    for own in zip(*parts, strict=True):
        given = (t.transpose(0, 1).unsqueeze(0) for t in own)
        out, lse = fusewheel.attention(*given, **options, return_lse=True)
        outs.append(out.squeeze(0).transpose(0, 1))
        sums.append(lse.squeeze(0))
    return torch.cat(outs), torch.cat(sums, 1)


def with_gradients(function: Callable[..., Any], *tensors: Tensor) -> list[Tensor]:
    """The results, and the gradients of all tensors."""
    given = leaves(*tensors)
    out, lse = function(*given)
    seeds = Make(out.dtype, seed=5)(*out.shape), Make(lse.dtype, seed=6)(*lse.shape)
    found = torch.autograd.grad((out, lse), given, seeds, materialize_grads=True)
    return [out, lse, *found]


def assert_same_bits(got: Sequence[Tensor], want: Sequence[Tensor]) -> None:
    for a, b in zip(got, want, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("options", OPTIONS)
def test_the_bits_of_attention_of_each_sequence(dtype, options):
    bounds = both()

    def own(q, k, v):
        return fusewheel.attention_varlen(q, k, v, *bounds, **options, return_lse=True)

    given = packed(dtype=dtype)
    want = with_gradients(lambda *given: alone(*given, **options), *given)
    assert_same_bits(with_gradients(own, *given), want)


@pytest.mark.parametrize("options", OPTIONS)
def test_sinks(options):
    """Their gradient is a sum over all sequences."""
    bounds = both()
    sinks = Make(torch.float64, seed=82)(4)

    def own(q, k, v, sinks):
        options_ = {**options, "sinks": sinks, "return_lse": True}
        return fusewheel.attention_varlen(q, k, v, *bounds, **options_)

    def separate(q, k, v, sinks):
        return alone(q, k, v, **options, sinks=sinks)

    got, want = (with_gradients(f, *packed(), sinks) for f in (own, separate))
    torch.testing.assert_close(got, want)


@pytest.mark.skipif(emulated(), reason="it is about the threads of the CPU kernels")
def test_the_same_bits_for_any_number_of_threads(dtype):
    """Long enough that several threads work on several sequences at once."""
    lengths = (500, 3, 600, 0, 550)
    bounds = both(lengths, lengths)
    sinks = Make(dtype, seed=83)(4)

    def own(q, k, v, sinks):
        return fusewheel.attention_varlen(
            q, k, v, *bounds, causal=True, sinks=sinks, return_lse=True
        )

    threads = torch.get_num_threads()
    results = []
    try:
        for count in (1, 2, 3, 7):
            torch.set_num_threads(count)
            given = packed(lengths, lengths, dtype=dtype)
            results.append(with_gradients(own, *given, sinks))
    finally:
        torch.set_num_threads(threads)
    for other in results[1:]:
        assert_same_bits(other, results[0])


def test_derivatives():
    make = Make(torch.float64, seed=84)
    bounds = both((1, 2, 1), (2, 2, 0))
    given = leaves(make(4, 2, 2), make(4, 1, 2), make(4, 1, 3), make(2))

    def function(q, k, v, sinks):
        return fusewheel.attention_varlen(
            q, k, v, *bounds, window=(1, 0), softcap=2.0, sinks=sinks, return_lse=True
        )

    assert torch.autograd.gradcheck(function, given, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(function, given)


@pytest.mark.parametrize("options", OPTIONS)
def test_transforms_see_the_same_sequences(options):
    """Where numbers cannot be read a mask says what each query sees."""
    queries, keys = (5, 0, 12, 3, 7), (5, 4, 9, 0, 20)
    bounds = both(queries, keys)
    given = (*packed(queries, keys), Make(torch.float64, seed=85)(4))

    def own(q, k, v, sinks):
        options_ = {**options, "sinks": sinks, "return_lse": True}
        return fusewheel.attention_varlen(q, k, v, *bounds, **options_)

    want = with_gradients(own, *given)
    results, pull = torch.func.vjp(own, *given)
    seeds = Make(torch.float64, seed=5)(*results[0].shape), Make(torch.float64, seed=6)(4, 27)
    torch.testing.assert_close([*results, *pull(seeds)], want)


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    torch.compiler.reset()
    counter = CompileCounterWithBackend("aot_eager")
    run = torch.compile(function, backend=counter, fullgraph=True, dynamic=True)
    run.counter = counter
    return run


def test_one_graph_for_all_lengths():
    def step(q, k, v, of_queries, of_keys):
        return fusewheel.attention_varlen(
            q, k, v, of_queries, of_keys, causal=True, return_lse=True
        )

    run = compiled(step)
    graphs = []
    for queries, keys in ((QUERIES, KEYS), ((30, 4), (50, 9)), ((2, 3, 80), (9, 9, 100))):
        bounds = both(queries, keys)
        given = packed(queries, keys)
        results = [
            with_gradients(lambda *given, f=f, b=bounds: f(*given, *b), *given) for f in (run, step)
        ]
        assert_same_bits(*results)
        graphs.append(run.counter.frame_count)
    assert len(set(graphs)) == 1


def test_tokens_that_only_run_time_counts():
    """As where a mask picks them: how many is a number without an example."""

    def step(x, mask, of_queries):
        own = x[mask]
        return fusewheel.attention_varlen(own, own, own, of_queries, of_queries, causal=True)

    x = Make(seed=86)(40, 4, 16).requires_grad_()
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        run = compiled(step)
        for lengths in ((3, 20, 4), (1, 0, 1)):
            mask = torch.arange(40) < sum(lengths)
            results = []
            for function in (run, step):
                out = function(x, mask, bounds_of(lengths, "cpu"))
                results.append((out, *torch.autograd.grad(out.square().sum(), x)))
            assert_same_bits(*results)
        exported = torch.export.export(
            Module(step), (x.detach(), mask, bounds_of(lengths, "cpu")), strict=False
        )
        mask = torch.arange(40) < 27
        got = exported.module()(x.detach(), mask, bounds_of((20, 3, 4), "cpu"))
        assert torch.equal(got, step(x, mask, bounds_of((20, 3, 4), "cpu")))


class Module(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *given: Tensor) -> Any:
        return self.function(*given)


def test_its_parts_merge():
    """Attention over the first and over the other keys of each sequence."""
    queries, first, second = (4, 7), (5, 130), (9, 20)
    q, k, v = packed(queries, first)
    _, other_k, other_v = packed(queries, second, seed=87)
    out, lse = fusewheel.attention_varlen(q, k, v, *both(queries, first), return_lse=True)
    other, other_lse = fusewheel.attention_varlen(
        q, other_k, other_v, *both(queries, second), return_lse=True
    )
    merged, merged_lse = fusewheel.merge_attention(out, lse.T, other, other_lse.T)

    def joined(a, b):
        pairs = zip(a.split(list(first)), b.split(list(second)), strict=True)
        return torch.cat([part for pair in pairs for part in pair])

    want, want_lse = fusewheel.attention_varlen(
        q,
        joined(k, other_k),
        joined(v, other_v),
        *both(queries, [a + b for a, b in zip(first, second, strict=True)]),
        return_lse=True,
    )
    torch.testing.assert_close(merged, want)
    torch.testing.assert_close(merged_lse.T, want_lse)


def any_arguments(d: Draw):
    heads, group, sequences = d.integer(1, 3), d.integer(1, 3), d.integer(0, 4)
    lengths = [
        [0 if d.rarely() else d.size(1, 65 if sequences > 1 else 130) for _ in range(sequences)]
        for _ in range(2)
    ]
    size, value_size = d.size(1, 65), d.size(1, 65)
    queries, keys = map(sum, lengths)
    return (
        d.tensor(queries, heads * group, size, scale=d.choice(1.0, 1e-3, 2.0)),
        d.tensor(keys, heads, size, scale=d.choice(1.0, 1e-3, 2.0)),
        d.tensor(keys, heads, value_size),
        *(
            d.lay(bounds_of(own, "cpu", d.choice(torch.int32, torch.int64)), apart=True)
            for own in lengths
        ),
        d.optional(heads * group),
        *d.choice((-1, -1), (-1, 0), (5, 0), (40, 3), (0, 0), (7, -1), (-1, 4), (300, 0)),
        d.choice(size**-0.5, 1.0, 0.1),
        d.choice(0.0, 0.0, 2.0),
    )


def any_backward_arguments(d: Draw):
    d.special = None  # the share of a key that is no number is its formula's business
    given = any_arguments(d)
    out, lse = OPERATORS["attention_varlen"].reference(*given)
    grad, grad_lse = d.tensor(*out.shape), d.tensor(*lse.shape, dtype=lse.dtype)
    return grad, grad_lse, *given[:6], d.lay(out), d.lay(lse), *given[6:]


FUZZ = {
    "attention_varlen": any_arguments,
    "attention_varlen_backward": any_backward_arguments,
}

"""Attention of one query, with `inner="none"`: by the kernel of `attention_decode`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from compiler.test_caches import OPTIONS, build
from compiler.test_models import tokens
from fusewheel import attention_decode
from fusewheel.engine.attention import attend
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

FULL, BRAIN, HALF = torch.float32, torch.bfloat16, torch.float16


def inputs(
    dtype: torch.dtype = FULL, heads: int = 6, queries: int = 1, keys: int = 200, size: int = 16
) -> tuple[Tensor, Tensor, Tensor]:
    """A query, and keys and values with free rows behind them."""
    q = torch.randn(2, heads, queries, size).to(dtype)
    k, v = (torch.randn(2, 2, keys + 30, size).to(dtype)[:, :, :keys] for _ in range(2))
    return q, k, v


def attention(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return scaled_dot_product_attention(q, k, v, enable_gqa=True, **options)


def count(compare: Any, function: Any, *given: Any, **settings: Any) -> int:
    """How many calls became `attend`; the oracle judges the values."""
    compare(function, *given, inner="none", **settings)
    found: int = compare.targets().count(attend)
    return found


@pytest.mark.parametrize("dtype", [FULL, BRAIN, HALF], ids=str)
@pytest.mark.parametrize("scale", [None, 0.3])
def test_values(compare: Any, dtype: torch.dtype, scale: float | None) -> None:
    assert count(compare, lambda q, k, v: attention(q, k, v, scale=scale), *inputs(dtype)) == 1


def test_what_follows(compare: Any) -> None:
    """The result is laid out as the operations behind it expect."""

    def layer(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q, k, v).transpose(1, 2).contiguous().view(2, 1, -1) * 2

    assert count(compare, layer, *inputs()) == 1


STAY = {
    "several queries": (attention, inputs(queries=2)),
    "float64": (attention, inputs(torch.float64)),
    "a mask for each head": (
        lambda q, k, v: attention(q, k, v, attn_mask=torch.ones(1, 6, 1, 200, dtype=torch.bool)),
        inputs(),
    ),
    "a mask of numbers": (
        lambda q, k, v: attention(q, k, v, attn_mask=torch.zeros(2, 1, 1, 200)),
        inputs(),
    ),
    "a mask for each query": (
        lambda q, k, v: attention(q, k, v, attn_mask=torch.ones(1, 1, 3, 200, dtype=torch.bool)),
        inputs(heads=2, queries=3),
    ),
    # Tokens of a text, as a projection leaves them, and no heads that share keys.
    "tokens with one mask": (
        lambda q, k, v: attention(
            q.transpose(1, 2), k, v, attn_mask=torch.ones(2, 1, 1, 200, dtype=torch.bool)
        ),
        inputs(heads=3, queries=2),
    ),
    # It sees the first key only.
    "causal": (lambda q, k, v: attention(q, k, v, is_causal=True), inputs()),
}


@pytest.mark.parametrize(("function", "given"), STAY.values(), ids=STAY)
def test_what_stays(compare: Any, function: Any, given: Any) -> None:
    assert count(compare, function, *given) == 0


# The keys that two sequences see, of 200.
SEEN = {
    "padding": ((0, 200), (37, 200)),
    "a window": ((150, 171), (20, 41)),
    "one key": ((0, 1), (199, 200)),
    "no key": ((0, 0), (3, 200)),
}


def seen(runs: Any) -> Tensor:
    mask = torch.zeros(2, 1, 1, 200, dtype=torch.bool)
    for row, (begin, end) in zip(mask[:, 0, 0], runs, strict=True):
        row[begin:end] = True
    return mask


@pytest.mark.parametrize("dtype", [FULL, BRAIN, HALF], ids=str)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("runs", SEEN.values(), ids=SEEN)
def test_masks(compare: Any, runs: Any, packed: bool, dtype: torch.dtype) -> None:
    """`packed` as transformers writes it: heads that share keys are queries of one head."""
    q, k, v = inputs(dtype)
    if packed:
        q = q.view(2, 2, 3, 16)
    given = q, k, v, seen(runs)
    assert count(compare, lambda q, k, v, m: attention(q, k, v, attn_mask=m), *given) == 1
    lengths = torch.tensor([end - begin for begin, end in runs])
    own = attend(*given)
    for i, (begin, end) in enumerate(runs):
        rows = (t[i : i + 1, :, begin : max(end, 1)] for t in (k, v))
        heads = q[i : i + 1].reshape(1, 6, 1, 16)
        alone = attention_decode(heads, *rows, lengths[i : i + 1])
        assert torch.equal(own[i].flatten(), alone.flatten()), "not the kernel's bits"


def test_a_mask_of_two_runs(compare: Any) -> None:
    q, k, v = inputs()
    mask = seen(SEEN["padding"])
    mask[1, ..., 90] = False
    function = lambda q, k, v, m: attention(q, k, v, attn_mask=m)  # noqa: E731
    assert count(compare, function, q, k, v, mask) == 1
    torch.testing.assert_close(attend(q, k, v, mask), function(q, k, v, mask))


def test_generation_with_padding(compare: Any) -> None:
    model = build("Llama")
    ids, mask = tokens(5, 2), torch.ones(2, 5, dtype=torch.int64)
    mask[0, :3] = 0
    options = {**OPTIONS, "attention_mask": mask, "max_new_tokens": 8}
    expected = model.generate(ids, **options)
    model.forward, _ = compare.compile(model.forward, "none")
    assert torch.equal(model.generate(ids, **options), expected)
    assert compare.targets().count(attend) == 1


def test_gradients_stay(compare: Any) -> None:
    q, k, v = inputs()
    assert count(compare, attention, q.requires_grad_(), k, v) == 0


def test_autocast_stays(compare: Any) -> None:
    compiled, _ = compare.compile(attention, "none")
    given = inputs()
    with torch.autocast("cpu", BRAIN):
        assert compiled(*given).dtype == BRAIN
    assert attend not in compare.targets()


def test_generation(compare: Any) -> None:
    """A cache grows: the number of keys at its first token decides nothing."""
    model = build("Llama")
    ids = tokens(5, 1)
    expected = model.generate(ids, max_new_tokens=8, **OPTIONS)
    model.forward, _ = compare.compile(model.forward, "none")
    assert torch.equal(model.generate(ids, max_new_tokens=8, **OPTIONS), expected)
    assert compare.targets().count(attend) == 1


def test_forward_mode() -> None:
    q, k, v = inputs()
    # The others of PyTorch's kernels have no tangents.
    math = torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)
    with math, torch.no_grad(), torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(v, torch.ones_like(v))
        found = torch.autograd.forward_ad.unpack_dual(attend(q, k, dual))
        torch.testing.assert_close(found.tangent, torch.ones_like(found.primal))


@pytest.mark.parametrize("heads", [2, 6])
@pytest.mark.parametrize("keys", [1, 5, 64])
def test_few_keys(compare: Any, heads: int, keys: int) -> None:
    """Also where each head has keys of its own."""
    assert count(compare, attention, *inputs(heads=heads, keys=keys)) == 1


def test_no_keys() -> None:
    q, k, v = inputs(keys=0)
    assert torch.equal(attend(q, k, v), attention(q, k, v))


def test_the_kernel() -> None:
    """Its bits are those of the public function, also for a few keys."""
    q, k, v = inputs(keys=5)
    lengths = torch.full((2,), 5)
    assert torch.equal(attend(q, k, v, scale=0.3), attention_decode(q, k, v, lengths, scale=0.3))

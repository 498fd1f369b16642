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
    "a mask": (
        lambda q, k, v: attention(q, k, v, attn_mask=torch.ones(1, 200, dtype=torch.bool)),
        inputs(),
    ),
    # It sees the first key only.
    "causal": (lambda q, k, v: attention(q, k, v, is_causal=True), inputs()),
}


@pytest.mark.parametrize(("function", "given"), STAY.values(), ids=STAY)
def test_what_stays(compare: Any, function: Any, given: Any) -> None:
    assert count(compare, function, *given) == 0


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
    assert torch.equal(attend(q, k, v, 0.3), attention_decode(q, k, v, lengths, scale=0.3))

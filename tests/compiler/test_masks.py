"""What is read off the masks of attention."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import fusewheel
import pytest
import torch
import torch.nn.functional as F
from fusewheel.compiler.read.masks import Mask

Tensor = torch.Tensor
Q, K = 6, 8


def _positions(offset: int = 0, queries: int = Q) -> tuple[Tensor, Tensor]:
    return torch.arange(queries)[:, None] + offset, torch.arange(K)[None, :]


def _added(condition: Tensor, value: float = -math.inf) -> Tensor:
    return torch.where(condition, 0.0, value)


def _hugging_face(window: int | None, padding: Tensor) -> Tensor:
    batch = torch.arange(2)[:, None, None, None]
    queries = (torch.arange(Q) + 0)[None, None, :, None]
    keys = (torch.arange(K) + 0)[None, None, None, :]
    mask = queries.new_ones((), dtype=torch.bool)
    if window is not None:
        mask = mask & (keys > queries - window).to("cpu")
    mask = mask & (keys <= queries).to("cpu")
    mask = mask & padding[batch, keys].to("cpu")
    return mask.expand(2, -1, Q, K)


def _written() -> Tensor:
    mask = torch.ones(Q, K, dtype=torch.bool).tril()
    mask[0] = False
    return mask


def _shifted_later() -> Tensor:
    queries, keys = _positions()
    mask = keys <= queries.add_(1)
    return mask


KINDS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "causal": (lambda p: (lambda q, k: k <= q)(*_positions()), "causal"),
    "turned": (lambda p: (lambda q, k: q >= k)(*_positions()), "causal"),
    "strict": (lambda p: (lambda q, k: k < q + 1)(*_positions()), "causal"),
    "not": (lambda p: (lambda q, k: ~(k > q))(*_positions()), "causal"),
    "nor": (
        lambda p: (lambda q, k: torch.logical_not((k > q) | (k <= q - 3)))(*_positions()),
        "sliding window [-2, 0]",
    ),
    "offset": (lambda p: (lambda q, k: k <= q)(*_positions(2)), "causal, +2"),
    "window": (
        lambda p: (lambda q, k: (k <= q) & (k > q - 4))(*_positions()),
        "sliding window [-3, 0]",
    ),
    "both_sides": (
        lambda p: (lambda q, k: (k < q + 3) & (k > q - 3))(*_positions()),
        "sliding window [-2, 2]",
    ),
    "tril": (lambda p: torch.ones(Q, K, dtype=torch.bool).tril(), "causal"),
    "tril_of_floats": (lambda p: torch.tril(torch.ones(Q, K)) != 0, "causal"),
    "triu": (lambda p: ~torch.triu(torch.ones(Q, K), diagonal=1).bool(), "causal"),
    "triu_added": (lambda p: torch.triu(torch.full((Q, K), -math.inf), diagonal=1), "causal"),
    "added": (lambda p: _added(torch.ones(Q, K, dtype=torch.bool).tril()), "causal"),
    "filled": (
        lambda p: torch.zeros(Q, K).masked_fill(torch.ones(Q, K).tril() == 0, -math.inf),
        "causal",
    ),
    "padding": (lambda p: p[:, None, None, :], "padding"),
    "padding_expanded": (lambda p: p[:, None, None, :].expand(2, 1, Q, K), "padding"),
    "padding_added": (lambda p: _added(p[:, None, None, :], -1e9), "padding"),
    "hugging_face": (lambda p: _hugging_face(None, p), "causal + padding"),
    "hugging_face_window": (lambda p: _hugging_face(3, p), "sliding window [-2, 0] + padding"),
    "always": (lambda p: torch.arange(Q)[:, None].expand(Q, K) >= 0, "none"),
    "never": (lambda p: torch.arange(Q)[:, None].expand(Q, K) < 0, "arbitrary"),
    "constant": (lambda p: torch.full((Q, K), 2, dtype=torch.int64) - 1 == 1, "none"),
    "constant_that_is_rounded": (
        lambda p: torch.full((Q, K), 0.5).to(torch.int32) == 1,
        "arbitrary",
    ),
    "constant_that_wraps": (
        lambda p: torch.full((Q, K), 0, dtype=torch.uint8) - 1 < 0,
        "arbitrary",
    ),
    "opposite": (lambda p: (lambda q, k: k >= q)(*_positions()), "sliding window [0, ]"),
    # A row of positions that is broadcast over all queries is that of the first.
    "one_row": (
        lambda p: (lambda q, k: (k <= q).expand(Q, K))(*_positions(queries=1)),
        "padding",
    ),
    "one_row_of_more": (
        lambda p: (lambda q, k: (k <= q) & p[0, :, None].expand(K, K)[:Q])(*_positions(queries=1)),
        "padding + arbitrary",
    ),
    "either": (lambda p: (lambda q, k: (k <= q) | (k > 5))(*_positions()), "arbitrary"),
    "bias": (lambda p: torch.where(p[:, None, None, :], 0.0, 1.0), "arbitrary"),
    "by_the_user": (lambda p: p[0].expand(Q, K) & p[1, :Q, None], "padding + arbitrary"),
    "written": (lambda p: _written(), "arbitrary"),
    "shifted_later": (lambda p: _shifted_later(), "arbitrary"),
}


@pytest.mark.parametrize("name", KINDS)
def test_kinds(compare: Any, name: str) -> None:
    build, kind = KINDS[name]

    def function(x: Tensor, padding: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x[:, :, :Q], x, x, attn_mask=build(padding))

    padding = torch.ones(2, K, dtype=torch.bool)
    report = compare(function, torch.randn(2, 2, K, 4), padding, inner="eager")
    (call,) = report.attentions
    assert (call.mask, call.count) == (kind, 1), report
    assert call.shapes == f"query 2 x 2 x {Q} x 4, keys {K}"


@pytest.mark.parametrize(("causal", "kind"), [(True, "causal"), (False, "none")])
def test_without_a_tensor(causal: bool, kind: str) -> None:
    def function(x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x, is_causal=causal)

    report = fusewheel.explain(function, torch.randn(2, 2, K, 4))
    (call,) = report.attentions
    assert call.mask == kind and call.source.startswith(__file__)
    assert f"mask: {kind}; query 2 x 2 x 8 x 4, keys 8" in str(report)


def test_positions_that_only_the_call_knows(compare: Any) -> None:
    """As of a cache that has been filled so far."""

    def function(x: Tensor, start: Tensor) -> Tensor:
        queries, keys = _positions()
        return F.scaled_dot_product_attention(x[:, :, :Q], x, x, keys <= queries + start)

    report = compare(function, torch.randn(2, 2, K, 4), torch.tensor(1), inner="eager")
    assert report.attentions[0].mask == "arbitrary"


def test_dynamic_shapes(compare: Any) -> None:
    def function(x: Tensor) -> Tensor:
        positions = torch.arange(x.shape[2])
        return F.scaled_dot_product_attention(x, x, x, positions <= positions[:, None])

    compiled, recorder = compare.compile(function, "eager", dynamic=True)
    for length in (5, 7):
        x = torch.randn(2, 2, length, 4)
        torch.testing.assert_close(compiled(x), function(x))
    assert [call.mask for call in recorder.report().attentions] == ["causal"]


ROWS = [
    (Mask(), 6, 8, True),
    (Mask(upper=0), 8, 6, True),
    (Mask(upper=-1), 6, 8, False),  # the first query sees none
    (Mask(-2, 0), 6, 8, True),
    (Mask(-2, 0), 8, 6, False),  # the last ones are behind all keys
    (Mask(-2, 0), 7, 8, True),
    (Mask(1, 2), 6, 8, True),
    (Mask(1, 2), 7, 8, False),
    (Mask(0), 8, 8, True),
    (Mask(3, 1), 2, 8, False),
    (Mask(1), 8, 8, False),
]


@pytest.mark.parametrize(("mask", "queries", "keys", "shown"), ROWS, ids=str)
def test_rows(mask: Mask, queries: int, keys: int, shown: bool) -> None:
    assert mask.shows_every_query_a_key(queries, keys) == shown
    lower = -99 if mask.lower is None else mask.lower
    upper = 99 if mask.upper is None else mask.upper
    seen = [any(lower <= k - q <= upper for k in range(keys)) for q in range(queries)]
    assert all(seen) or not shown

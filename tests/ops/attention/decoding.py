"""Inputs of attention_decode."""

from __future__ import annotations

import torch
from fusewheel.dispatch.operator import Make
from torch import Tensor


def caches(
    lengths: list[int],
    *,
    heads: int = 4,
    kv_heads: int = 2,
    queries: int = 1,
    size: int = 16,
    value_size: int | None = None,
    dtype: torch.dtype = torch.float64,
    seed: int = 91,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries, caches with a little more room than is needed, and lengths."""
    make = Make(dtype, seed=seed)
    batch, capacity = len(lengths), max(lengths) + 5
    q = make(batch, heads, queries, size)
    k = make(batch, kv_heads, capacity, size)
    v = make(batch, kv_heads, capacity, value_size or size)
    return q, k, v, torch.tensor(lengths)


def in_pages(cache: Tensor, page_size: int, table: Tensor, filler: float) -> Tensor:
    """The pages of a cache [batch, kv heads, capacity, ...]; `filler` where there are no keys."""
    pages = int(table.max()) + 3
    shape = pages, page_size, cache.shape[1], *cache.shape[3:]
    found = torch.full(shape, filler, dtype=cache.dtype)
    for b, numbers in enumerate(table.tolist()):
        for i, number in enumerate(numbers):
            own = cache[b, :, i * page_size : (i + 1) * page_size].transpose(0, 1)
            if number >= 0:
                found[number, : len(own)] = own
    return found


def any_table(lengths: Tensor, page_size: int) -> Tensor:
    """As many pages as each sequence needs, in no order; -1 behind them."""
    counts = [-(-length // page_size) for length in lengths.tolist()]
    numbers = iter(torch.randperm(sum(counts)).tolist())
    table = torch.full((len(counts), max(counts) + 1), -1, dtype=torch.int32)
    for b, count in enumerate(counts):
        table[b, :count] = torch.tensor([next(numbers) for _ in range(count)])
    return table


def assert_same(got: tuple[Tensor, ...], want: tuple[Tensor, ...]) -> None:
    for a, b in zip(got, want, strict=True):
        assert torch.equal(a, b)

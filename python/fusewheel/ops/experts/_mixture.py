"""The block of experts of a mixture, from the operators that it consists of."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from fusewheel.ops.experts.grouped_linear import grouped_linear


class Order(NamedTuple):
    """Pairs of a token and an expert, sorted by expert.

    Attributes:
        tokens: `[pairs]`, the token of each pair in this order.
        places: `[pairs]`, where each pair of the original order is in this order.
        ends: int32 `[experts]`, where the pairs of each expert end. Pairs with another number come
            after the last end.
    """

    tokens: Tensor
    places: Tensor
    ends: Tensor


def order_of(indices: Tensor, experts: int) -> Order:
    """The pairs of `indices` `[tokens, k]`, the experts of each token."""
    flat = indices.reshape(-1)
    flat = torch.where(flat < 0, experts, flat)
    found, order = flat.sort(stable=True)
    numbers = torch.arange(experts, dtype=flat.dtype, device=flat.device)
    ends = torch.searchsorted(found, numbers, right=True, out_int32=True)
    positions = torch.arange(flat.shape[0], device=flat.device)
    places = torch.empty_like(order).scatter(0, order, positions)
    return Order(order // indices.shape[1], places, ends)


def mixture(
    x: Tensor,
    indices: Tensor,
    weights: Tensor,
    first: Callable[[Tensor, Tensor], Tensor],
    between: Callable[[Tensor], Tensor],
    last: Callable[[Tensor, Tensor], Tensor],
    experts: int,
) -> Tensor:
    """For each token the weighted sum of what its experts make of it.

    Args:
        x: `[tokens, in features]`.
        indices: integers `[tokens, k]`, the experts of each token.
        weights: `[tokens, k]`, what each of them counts for.
        first: the first linear layers, from sorted rows and their ends.
        between: what is between the layers, from rows to rows.
        last: the last linear layers, likewise, to `[pairs, out features]`.
        experts: how many there are.

    Returns:
        `[tokens, out features]` in the dtype of `x`.
    """
    order = order_of(indices, experts)
    hidden = between(first(x.index_select(0, order.tokens), order.ends))
    y = last(hidden, order.ends).index_select(0, order.places)
    pairs = y.view(*indices.shape, y.shape[-1])
    return (pairs * weights.unsqueeze(-1)).sum(1).to(x.dtype)


def layers(weight: Tensor, bias: Tensor | None) -> Callable[[Tensor, Tensor], Tensor]:
    """Linear layers with a weight `[experts, out features, in features]`."""
    return lambda x, ends: grouped_linear(x, weight, ends, bias)

"""The block of experts of a mixture, from the operators that it consists of."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from fusewheel._torch.dispatcher import is_direct
from fusewheel.dispatch.short import short_way
from fusewheel.ops.activation.gelu_mul import gelu_mul_packed
from fusewheel.ops.activation.silu_mul import silu_mul_packed

# Tokens that one operator takes from gate to sum. With more, several operators cost little beside
# their products.
_MOST_TOKENS = 8


class Layers(NamedTuple):
    """The linear layers of all experts.

    Attributes:
        weight: `[experts, out features, in features]`, or their stored blocks.
        bias: `[experts, out features]`; None if there is none.
        kind: the number of the format of the blocks, 0 for a floating weight.
    """

    weight: Tensor
    bias: Tensor | None = None
    kind: int = 0

    def apply(self, x: Tensor, ends: Tensor) -> Tensor:
        """Rows sorted by expert, whose ends these are."""
        fusewheel = torch.ops.fusewheel
        if self.kind == 0:
            y: Tensor = fusewheel.grouped_linear(x, self.weight, ends, self.bias)
        else:
            y = fusewheel.grouped_linear_blocks(x, self.weight, self.kind, ends, self.bias)
        return y


def gelu_packed(gate_up: Tensor) -> Tensor:
    """`gelu(gate) * up`."""
    return gelu_mul_packed(gate_up, approximate="none")


def gelu_tanh_packed(gate_up: Tensor) -> Tensor:
    """Likewise with gelu's approximation by tanh."""
    return gelu_mul_packed(gate_up, approximate="tanh")


ACTIVATIONS = (silu_mul_packed, gelu_packed, gelu_tanh_packed)
"""What can be between the layers of the operator `experts`, by its number."""


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
    # Not `arange`: the size of a product, which a capture with sizes of run time does not know.
    positions = torch.ones_like(order).cumsum(0) - 1
    places = torch.empty_like(order).scatter(0, order, positions)
    return Order(order // indices.shape[1], places, ends)


def mixture(
    x: Tensor,
    indices: Tensor,
    weights: Tensor,
    first: Layers | Callable[[Tensor, Tensor], Tensor],
    between: Callable[[Tensor], Tensor],
    last: Layers | Callable[[Tensor, Tensor], Tensor],
    experts: int,
) -> Tensor:
    """For each token the weighted sum of what its experts make of it.

    Args:
        x: `[tokens, in features]`.
        indices: integers `[tokens, k]`, the experts of each token.
        weights: `[tokens, k]`, what each of them counts for.
        first: the first linear layers, or a function from sorted rows and their ends.
        between: what is between the layers, from rows to rows.
        last: the last linear layers, likewise, to `[pairs, out features]`.
        experts: how many there are.

    Returns:
        `[tokens, out features]` in the dtype of `x`.
    """
    if isinstance(first, Layers) and isinstance(last, Layers):
        for number, activation in enumerate(ACTIVATIONS):
            if between is activation and takes_one_call(x, weights, first, last):
                return one_call(x, indices, weights, first, last, number)
    return by_layers(x, indices, weights, first, between, last, experts)


def by_layers(
    x: Tensor,
    indices: Tensor,
    weights: Tensor,
    first: Layers | Callable[[Tensor, Tensor], Tensor],
    between: Callable[[Tensor], Tensor],
    last: Layers | Callable[[Tensor, Tensor], Tensor],
    experts: int,
) -> Tensor:
    """The same by operators that keep what a gradient needs."""
    order = order_of(indices, experts)
    hidden = between(apply(first, x.index_select(0, order.tokens), order.ends))
    rows = apply(last, hidden, order.ends).index_select(0, order.places)
    pairs = rows.view(*indices.shape, rows.shape[-1])
    return (pairs * weights.unsqueeze(-1)).sum(1).to(x.dtype)


_experts = short_way("experts")


def one_call(
    x: Tensor, indices: Tensor, weights: Tensor, first: Layers, last: Layers, activation: int
) -> Tensor:
    """The same by one operator; `activation` is a number in `ACTIVATIONS`."""
    y: Tensor = _experts(
        *(x, indices, weights, first.weight, first.kind, first.bias),
        *(last.weight, last.kind, last.bias, activation),
    )
    return y


def apply(layers: Layers | Callable[[Tensor, Tensor], Tensor], x: Tensor, ends: Tensor) -> Tensor:
    """Rows sorted by expert, whose ends these are, through linear layers."""
    return layers.apply(x, ends) if isinstance(layers, Layers) else layers(x, ends)


def takes_one_call(x: Tensor, weights: Tensor, first: Layers, last: Layers) -> bool:
    """Whether the operator `experts` is faster, and does the same."""
    device = x.device.type
    if device not in ("cpu", "cuda") or x.dim() != 2 or not _is_few(x.shape[0], device):
        return False
    if weights.dtype == torch.float64 and x.dtype != torch.float64:
        return False
    # Autocast casts what goes into single layers.
    given = (x, weights, first.weight, first.bias, last.weight, last.bias)
    return not torch.is_grad_enabled() or not any(t is not None and t.requires_grad for t in given)


def _is_few(tokens: int, device: str) -> bool:
    """Whether there are few tokens, and nothing but a kernel stands behind a call."""
    if not torch.compiler.is_compiling():
        return is_direct() and tokens <= _MOST_TOKENS
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    # A guard on their number would compile a program twice.
    return not torch.is_autocast_enabled(device) and statically_known_true(tokens <= _MOST_TOKENS)

"""Arguments of ring attention, and attention over the whole sequence to compare it with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from fusewheel.ops.attention import _attention_formula as formula
from fusewheel.ops.attention._attention import limits
from neighbours import add, add_errors_beside
from oracle import Errors, assert_allowed, to_dtype
from torch import Tensor

# Query heads, heads of keys and values, head size, that of values.
SHAPES = {
    "equal heads": (4, 4, 8, 8),
    "grouped heads, other values": (4, 2, 16, 5),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True},
    "causal, scale and cap": {"causal": True, "scale": 0.7, "softcap": 2.0},
}
# With sinks beside them; pieces of unequal lengths.
WINDOWS: dict[str, dict[str, Any]] = {
    "wide": {"window": (7, 5)},
    "narrow": {"window": (1, 0), "softcap": 2.0},
    "to the left": {"causal": True, "window": (6, None)},
    "to the right": {"window": (None, 2)},
    "of one key": {"window": (0, 0)},
}
UNEQUAL = [5, 1, 0, 9]


def tensors(sizes: Sequence[int], queries: int, keys: int, dtype: torch.dtype) -> list[Tensor]:
    """q, k, v and the gradients of the result and of the logsumexp."""
    heads, kv_heads, size, value_size = sizes
    generator = torch.Generator().manual_seed(81)

    def draw(*shape: int) -> Tensor:
        return torch.randn(2, *shape, generator=generator).to(dtype)

    return [
        draw(heads, queries, size),
        draw(kv_heads, keys, size),
        draw(kv_heads, keys, value_size),
        draw(heads, queries, value_size),
        draw(heads, queries).to(torch.float64 if dtype == torch.float64 else torch.float32),
    ]


def sinks_of(heads: int, dtype: torch.dtype) -> Tensor:
    return torch.linspace(-1, 2, heads).to(dtype)


def evaluate(
    function: Callable[..., Any], given: Sequence[Tensor], sinks: Tensor | None = None, **how: Any
) -> list[Tensor]:
    """The result, the logsumexp, and the gradients of q, k, v and the sinks through both."""
    leaves = [t.detach().requires_grad_() for t in given[:3]]
    if sinks is not None:
        leaves.append(how.setdefault("sinks", sinks.detach().requires_grad_()))
    results = function(*leaves[:3], **how, return_lse=True)
    return [*(t.detach() for t in results), *torch.autograd.grad(results, leaves, given[3:])]


def plain(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool = False,
    window: tuple[int | None, int | None] | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    return_lse: bool = True,
) -> tuple[Tensor, Tensor]:
    """Attention in PyTorch's operators."""
    factor = q.shape[3] ** -0.5 if scale is None else scale
    sides = limits("plain", causal, window)
    return formula.attention(q, k, v, sinks, None, *sides, factor, softcap)


def compare(
    got: Sequence[Tensor],
    whole: Sequence[Tensor],
    options: dict[str, Any],
    piece: Callable[[Tensor], Tensor] = lambda t: t,
    sinks: Tensor | None = None,
) -> None:
    """Each result, or this process's piece of it; by eager's errors in the whole of it."""

    def compute(function: Any, arguments: Any) -> list[Tensor]:
        *own, sinks = arguments
        return evaluate(function, own, sinks, **options)

    arguments = (*whole, sinks)
    eager = compute(plain, arguments)
    exact = compute(plain, to_dtype(arguments, torch.float64))
    errors = [Errors(b.dtype, together=True) for b in eager]
    add(errors, eager, exact)
    if sinks is not None:
        # Of so few numbers eager may have hit every one.
        generator = torch.Generator().manual_seed(0)
        for _ in range(8):
            add_errors_beside(errors, compute, plain, arguments, exact, generator, 2.0**-8)
    names = ("out", "lse", "q", "k", "v", "sinks")
    for name, a, b, c, off in zip(names, got, eager, exact, errors, strict=False):
        own = (lambda t: t) if name == "sinks" else piece
        assert_allowed(a, own(b), own(c), off, name)
    assert len(got) == len(eager)


def summed(t: Tensor) -> Tensor:
    """Over all processes, rounded once."""
    total = t.double()
    dist.all_reduce(total)
    return total.to(t.dtype)


def make(length: int) -> list[Tensor]:
    return tensors(SHAPES["grouped heads, other values"], length, length, torch.float32)


def distribute(whole: Sequence[Tensor], mesh: Any, placements: Any) -> list[Tensor]:
    from torch.distributed.tensor import distribute_tensor

    return [distribute_tensor(t, mesh, placements, src_data_rank=None) for t in whole]

"""What no kernel computes of attention, for some queries at a time.

The scores of these queries are in memory, and no others: memory grows linearly with the length. How
many queries that are follows from the shapes, so the same call gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from fusewheel._torch.autograd import in_forward_mode
from fusewheel._torch.functorch import in_transform, is_batch
from fusewheel._torch.jit import is_tracing
from fusewheel.dispatch.autograd import reference_gradients
from fusewheel.dispatch.operator import Arguments
from fusewheel.ops._rows import wide
from fusewheel.ops.attention import _attention_formula as formula

SCORES = 2**20
"""So many scores are in memory at a time, or those of `FEWEST` queries if these are more."""
FEWEST = 16

# How rows are taken from an argument: its dimension 2 has queries, it has keys, its last two have
# both (a bias, any of which may be 1), or it has neither.
_QUERIES, _KEYS, _BOTH, _WHOLE = range(4)
_OF_BACKWARD = (_QUERIES, _QUERIES, _QUERIES, _KEYS, _KEYS, _WHOLE, _BOTH, _QUERIES, _QUERIES)
_OF_BACKWARD_RESULTS = (_QUERIES, _KEYS, _KEYS, _WHOLE)
_OF_BIAS = (_QUERIES, _QUERIES, _QUERIES, _KEYS, _KEYS, _WHOLE, _BOTH)
_OF_FORWARD = (_QUERIES, _KEYS, _KEYS, _WHOLE, _BOTH)


class Rows(NamedTuple):
    """Some queries, and the keys that the window lets them see.

    Attributes:
        queries: which.
        keys: which.
        first: where the first of these queries stands among these keys.
    """

    queries: slice
    keys: slice
    first: int

    def of(self, tensor: Tensor | None, kind: int) -> Tensor | None:
        """The part of an argument or of its gradient."""
        if tensor is None or kind == _WHOLE:
            return tensor
        if kind == _QUERIES:
            return tensor[:, :, self.queries]
        if kind == _KEYS:
            return tensor[:, :, self.keys]
        queries = self.queries if tensor.shape[2] > 1 else slice(None)
        return tensor[:, :, queries, self.keys if tensor.shape[3] > 1 else slice(None)]


def rows_of(q: Tensor, k: Tensor, left: int, right: int) -> Iterator[Rows]:
    """All queries, in their order; one empty part if there are none."""
    (batch, heads, queries), keys = q.shape[:3], k.shape[2]
    step = max(FEWEST, SCORES // max(1, batch * heads * keys))
    for begin in range(0, max(1, queries), step):
        end = min(begin + step, queries)
        at = begin + keys - queries
        low = 0 if left < 0 else min(max(0, at - left), keys)
        high = keys if right < 0 else min(max(low, at + end - begin + right), keys)
        yield Rows(slice(begin, end), slice(low, high), at - low)


def can_cut(tensors: Iterable[Any]) -> bool:
    """Whether these are tensors with numbers: not distributed, traced or transformed."""
    if torch.compiler.is_compiling() or is_tracing():
        return False
    kinds = (Tensor, torch.nn.Parameter)
    given = [t for t in tensors if isinstance(t, Tensor)]
    return not in_transform() and all(type(t) in kinds and not is_batch(t) for t in given)


def with_dropout(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sinks: Tensor | None,
    bias: Tensor | None,
    *options: Any,
) -> tuple[Tensor, Tensor]:
    """Attention whose shares are dropped by PyTorch's generator; the last option is how probably.

    The backward computes each part again, with the same numbers of the generator.
    """
    given = (q, k, v, sinks, bias)
    if not can_cut(given) or in_forward_mode():
        return formula.attention(*given, *options)
    parts = []
    for rows in rows_of(q, k, *options[:2]):
        function = partial(_forward, options, rows.first)
        parts.append(_computed_again(function, *_cut(rows, given, _OF_FORWARD)))
    outs, sums = zip(*parts, strict=True)
    return torch.cat(outs, 2).to(q.dtype), torch.cat(sums, 2)


def _forward(options: tuple[Any, ...], first: int, *given: Any) -> tuple[Tensor, Tensor]:
    return formula.attention(*given, *options, first=first)


def bias_gradient(grads: Sequence[Tensor], arguments: Arguments) -> Tensor | None:
    """The gradient of a float bias. If it is to be differentiated, its backward computes each part
    again.

    Args:
        grads: those of the result and of its logsumexp.
        arguments: of the operator `attention`.
    """
    given, options = (*grads, *arguments[:5]), arguments[5:]
    bias: Tensor = arguments[4]
    if not can_cut(given):
        only_bias = [i == 4 for i in range(len(arguments))]
        return reference_gradients(formula.attention, only_bias, grads, arguments)[4]
    total = wide(torch.zeros_like(bias))
    for rows in rows_of(*arguments[:2], *options[:2]):
        function = partial(_bias_gradient, options, rows.first)
        _add(total, _computed_again(function, *_cut(rows, given, _OF_BIAS)), rows, _BOTH)
    return total.to(bias.dtype)


def _bias_gradient(options: tuple[Any, ...], first: int, *given: Any) -> Tensor:
    return formula.bias_gradient(*given, *options, first=first)


def backward_gradients(
    needs: Sequence[bool],
    grads: Sequence[Tensor],
    arguments: Arguments,
    saved: Sequence[Tensor] = (),
) -> list[Tensor | None]:
    """`Operator.backward` of the operator `attention_backward`: second derivatives.

    For third derivatives the scores of all queries are in memory.
    """
    if torch.is_grad_enabled() or not can_cut((*grads, *arguments)):
        return reference_gradients(formula.attention_backward, needs, grads, arguments)
    given, options = arguments[:9], arguments[9:]
    totals = [
        wide(torch.zeros_like(a)) if needed else None
        for a, needed in zip(given, needs, strict=False)
    ]
    for rows in rows_of(given[2], given[3], *options[:2]):
        found = reference_gradients(
            partial(formula.attention_backward, first=rows.first),
            needs,
            _cut(rows, grads, _OF_BACKWARD_RESULTS),
            (*_cut(rows, given, _OF_BACKWARD), *options),
        )
        for total, term, kind in zip(totals, found, _OF_BACKWARD, strict=False):
            if total is not None and term is not None:
                _add(total, term, rows, kind)
    narrow = [None if t is None else t.to(a.dtype) for t, a in zip(totals, given, strict=True)]
    return [*narrow, *(None for _ in options)]


def _cut(rows: Rows, tensors: Sequence[Any], kinds: Sequence[int]) -> tuple[Any, ...]:
    """Some rows of each, in the dtype of computation, because their gradients are added up."""
    parts = (rows.of(t, kind) for t, kind in zip(tensors, kinds, strict=True))
    return tuple(wide(t) if t is not None and t.is_floating_point() else t for t in parts)


def _add(total: Tensor, term: Tensor, rows: Rows, kind: int) -> None:
    part = rows.of(total, kind)
    assert part is not None
    part += term


def _computed_again(function: Callable[..., Any], *given: Any) -> Any:
    """`function(*given)`; its backward computes it again instead of keeping what it needs."""
    if not torch.is_grad_enabled():
        return function(*given)
    return checkpoint(function, *given, use_reentrant=False)

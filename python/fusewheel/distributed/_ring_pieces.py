"""What each process of a ring computes of attention, and its first and second derivatives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fusewheel.distributed._ring import SEQUENCE, Ring, Transfer
from fusewheel.ops._rows import compute_dtype, wide
from fusewheel.ops.attention import _attention_rows as by_rows
from fusewheel.ops.attention._attention import empty_heads
from fusewheel.ops.attention._attention_formula import NOTHING
from fusewheel.ops.attention.merge_attention import merge_attention

Parts = tuple[Tensor, Tensor]


class Pair(NamedTuple):
    """What the operator is given of a process's queries and of a piece of keys.

    It places its last query at its last key. So queries at the end that see no key are left out, or
    keys at the end that no query sees, and the window is moved by the rest.

    Attributes:
        queries: so many of the first ones.
        keys: so many of the first ones.
        left: the window.
        right: likewise.
    """

    queries: int
    keys: int
    left: int
    right: int


def pair_of(queries: int, keys: int, position: int, left: int, right: int) -> Pair | None:
    """Query `i` stands at key `i + position`; None if the window shows no query a key."""
    if right >= 0:
        keys = min(keys, queries + position + right)
    if left >= 0:
        queries = min(queries, keys - position + left)
    if queries <= 0 or keys <= 0:
        return None
    shift = keys - queries - position
    # A larger window is no other one, but might be more than an integer holds.
    most = queries + keys
    return Pair(
        queries,
        keys,
        min(left + shift, most) if left >= 0 else -1,
        min(right - shift, most) if right >= 0 else -1,
    )


@dataclass(frozen=True)
class Options:
    """What all steps share.

    Attributes:
        ring: the processes.
        left: the window.
        right: likewise.
        scale: the factor of the scores.
        softcap: their largest magnitude; 0: none.
    """

    ring: Ring
    left: int
    right: int
    scale: float
    softcap: float

    def pair(self, step: int, q: Tensor, keys: Tensor) -> Pair | None:
        """Of the piece that is here in a step."""
        lengths = q.shape[SEQUENCE], keys.shape[SEQUENCE]
        return pair_of(*lengths, self.ring.position(step), self.left, self.right)

    def of(self, pair: Pair) -> tuple[int, int, float, float]:
        """The last arguments of the operator."""
        return pair.left, pair.right, self.scale, self.softcap


def attend(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, options: Options
) -> tuple[Tensor, Tensor]:
    """Attention of this process's queries, and its logsumexp."""
    found: tuple[Tensor, Tensor] = _Attend.apply(q, k, v, sinks, options)
    return found


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, options: Options
    ) -> Parts:
        # Wide, because as many are merged as there are processes.
        merged = _nothing(q, v, sinks)
        for step, (keys, values) in options.ring.pieces(k, v):
            pair = options.pair(step, q, keys)
            if pair is not None:
                own, *piece = _first((q, pair.queries), (keys, pair.keys), (values, pair.keys))
                out, lse = torch.ops.fusewheel.attention(own, *piece, None, None, *options.of(pair))
                merged = merge_attention(*merged, *_padded(wide(out), lse, q))
        out, lse = merged[0].to(q.dtype), merged[1]
        ctx.options = options
        ctx.save_for_backward(q, k, v, sinks, out, lse)
        return out, lse

    @staticmethod
    def backward(ctx: Any, grad: Tensor, grad_lse: Tensor) -> Any:
        q, k, v, sinks, out, lse = ctx.saved_tensors
        found = _Gradients.apply(grad, grad_lse, q, k, v, out, lse, ctx.options)
        of_sinks = None
        if ctx.needs_input_grad[3]:
            base = torch.where(lse == NOTHING, 0.0, lse)
            share = (wide(sinks).unsqueeze(-1) - base).exp()
            delta = (wide(grad) * wide(out)).sum(-1) - grad_lse
            of_sinks = -(share * delta).sum((0, 2)).to(sinks.dtype)
        return *found, of_sinks, None


class _Gradients(torch.autograd.Function):
    """The gradients of q, k and v.

    With the result and the logsumexp over all keys, the gradients from a part of the keys are terms
    of the whole gradients.
    """

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Any:
        *given, options = arguments
        grad, grad_lse, q, k, v, out, lse = given
        # Wide, because as many are added as there are processes.
        of_q, *sums = (wide(torch.zeros_like(t)) for t in (q, k, v))
        travelling = Transfer(sums)
        for step, (keys, values) in options.ring.pieces(k, v):
            terms: Sequence[Tensor | None] = ()
            pair = options.pair(step, q, keys)
            if pair is not None:
                of_part, *terms, _ = torch.ops.fusewheel.attention_backward(
                    *_of_pair(pair, grad, grad_lse, q, keys, values, out, lse), *options.of(pair)
                )
                _add(of_q, of_part)
            travelling = _passed_on(options.ring, step, travelling, terms)
        ctx.options = options
        ctx.save_for_backward(*given)
        return tuple(t.to(q.dtype) for t in (of_q, *travelling.arrived()))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        given = ctx.saved_tensors
        grad, grad_lse, q, k, v, out, lse = given
        options: Options = ctx.options
        sums = [wide(torch.zeros_like(t)) for t in given]
        travelling = Transfer((sums[3], sums[4]))
        for step, (keys, values, of_keys, of_values) in options.ring.pieces(k, v, *grads[1:]):
            terms: Sequence[Tensor | None] = ()
            pair = options.pair(step, q, keys)
            if pair is not None:
                arguments = _of_pair(pair, grad, grad_lse, q, keys, values, out, lse)
                of_results = (grads[0], pair.queries), (of_keys, pair.keys), (of_values, pair.keys)
                found = by_rows.backward_gradients(
                    [argument is not None for argument in arguments] + [False] * 4,
                    [*_first(*of_results), q.new_zeros(0)],
                    (*arguments, *options.of(pair)),
                )
                terms = found[3:5]
                for i, index in enumerate((0, 1, 2, 7, 8)):
                    _add(sums[(0, 1, 2, 5, 6)[i]], found[index])
            travelling = _passed_on(options.ring, step, travelling, terms)
        sums[3:5] = travelling.arrived()
        return *(t.to(a.dtype) for t, a in zip(sums, given, strict=True)), None


def _nothing(q: Tensor, v: Tensor, sinks: Tensor | None) -> Parts:
    """Attention to no key."""
    dtype = compute_dtype(q)
    out = torch.zeros_like(empty_heads((*q.shape[:3], v.shape[3]), q), dtype=dtype)
    if sinks is None:
        return out, q.new_full(q.shape[:3], NOTHING, dtype=dtype)
    return out, wide(sinks).unsqueeze(-1).expand(q.shape[:3])


def _padded(out: Tensor, lse: Tensor, q: Tensor) -> Parts:
    """With the rows of the queries that see nothing."""
    missing = q.shape[SEQUENCE] - out.shape[SEQUENCE]
    if missing == 0:
        return out, lse
    return F.pad(out, (0, 0, 0, missing)), F.pad(lse, (0, missing), value=NOTHING)


def _first(*given: tuple[Tensor, int]) -> Iterator[Tensor]:
    """So many of the first rows of each tensor."""
    return (tensor.narrow(SEQUENCE, 0, count) for tensor, count in given)


def _of_pair(
    pair: Pair,
    grad: Tensor,
    grad_lse: Tensor,
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    out: Tensor,
    lse: Tensor,
) -> tuple[Tensor | None, ...]:
    """The first arguments of the backward operator."""
    rows = tuple(_first(*((t, pair.queries) for t in (grad, grad_lse, q, out, lse))))
    return *rows[:3], *_first((keys, pair.keys), (values, pair.keys)), None, None, *rows[3:]


def _add(total: Tensor, term: Tensor | None) -> None:
    """To the first rows, as many as the term has."""
    if term is not None:
        next(_first((total, term.shape[SEQUENCE]))).add_(term)


def _passed_on(
    ring: Ring, step: int, travelling: Transfer, terms: Sequence[Tensor | None]
) -> Transfer:
    """The sums for a piece, with this process's terms, on their way to the next process."""
    sums = list(travelling.arrived())
    for total, term in zip(sums, terms, strict=False):
        _add(total, term)
    return ring.pass_on(step, sums)

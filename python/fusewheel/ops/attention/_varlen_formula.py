"""Attention of packed sequences and its gradients in PyTorch's operators."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fusewheel._torch.functorch import in_transform, is_plain
from fusewheel.dispatch.autograd import reference_gradients
from fusewheel.dispatch.operator import Arguments
from fusewheel.dispatch.promise import fail
from fusewheel.ops._rows import wide
from fusewheel.ops.attention import _attention_formula as formula
from fusewheel.ops.attention import _attention_rows as by_rows


class Part(NamedTuple):
    """Queries and keys that PyTorch's operators compute together.

    Attributes:
        queries: where they are among all.
        keys: likewise.
        seen: which keys each query sees, beside the window; None for all of them.
        left: the window, as in `attention`.
        right: likewise.
    """

    queries: slice
    keys: slice
    seen: Tensor | None
    left: int
    right: int


def sequences_of(
    op: str, q: Tensor, k: Tensor, bounds: Sequence[Tensor]
) -> list[tuple[slice, slice]] | None:
    """The queries and the keys of each sequence; None where a program is traced or transformed, so
    that numbers cannot be read. Raises the errors of the kernel about the numbers.
    """
    if in_transform() or not all(is_plain(t) and not t.is_meta for t in bounds):
        return None
    queries = _slices(op, "cu_seqlens_q", bounds[0], "q", q)
    keys = _slices(op, "cu_seqlens_k", bounds[1], "k", k)
    return list(zip(queries, keys, strict=True))


def _slices(op: str, name: str, bounds: Tensor, of: str, rows: Tensor) -> list[slice]:
    numbers: list[int] = bounds.tolist()
    if numbers[0] != 0:
        fail(op, f"{name} must begin with 0, got {numbers[0]}")
    for before, number in pairwise(numbers):
        if number < before:
            fail(op, f"{name} must not fall, got {number} after {before}")
    if numbers[-1] != rows.shape[0]:
        fail(
            op,
            f"{name} must end with {rows.shape[0]}, the size of dimension 0 of {of}, got "
            f"{numbers[-1]}",
        )
    return [slice(begin, end) for begin, end in pairwise(numbers)]


def _parts(
    op: str, q: Tensor, k: Tensor, bounds: Sequence[Tensor], left: int, right: int
) -> list[Part]:
    """One part for each sequence; where sequences are unknown one of all tokens, with a mask."""
    sequences = sequences_of(op, q, k, bounds)
    if sequences is None:
        everything = slice(None)
        seen = _same_sequence(q.shape[0], k.shape[0], bounds, left, right)
        return [Part(everything, everything, seen, -1, -1)]
    nothing = slice(0, 0)
    return [Part(*own, None, left, right) for own in sequences or [(nothing, nothing)]]


def _same_sequence(
    queries: int, keys: int, bounds: Sequence[Tensor], left: int, right: int
) -> Tensor:
    """Which keys each query sees `[1, 1, queries, keys]`, without reading numbers."""
    of_queries, of_keys = bounds
    query = torch.arange(queries, device=of_queries.device).unsqueeze(-1)
    key = torch.arange(keys, device=of_keys.device)
    # The number of a sequence is that of the sequences that end before.
    own = (query >= of_queries[1:]).sum(-1, keepdim=True)
    seen = own == (key.unsqueeze(-1) >= of_keys[1:]).sum(-1)
    # The last query of a sequence stands at its last key.
    more_keys = of_keys.diff() - of_queries.diff()
    at = query + ((query >= of_queries[:-1]) * more_keys).sum(-1, keepdim=True)
    if left >= 0:
        seen = seen & (key >= at - min(left, queries + keys))
    if right >= 0:
        seen = seen & (key <= at + min(right, queries + keys))
    return seen.unsqueeze(0).unsqueeze(0)


def _heads_first(tokens: Tensor, own: slice) -> Tensor:
    """Some tokens of `[tokens, heads, ...]` as `[1, heads, tokens, ...]`."""
    return tokens[own].transpose(0, 1).unsqueeze(0)


def _tokens_first(heads: list[Tensor]) -> Tensor:
    """The reverse, of all parts."""
    return torch.cat([part.squeeze(0).transpose(0, 1) for part in heads])


def attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    sinks: Tensor | None,
    left: int,
    right: int,
    scale: float,
    softcap: float,
) -> tuple[Tensor, Tensor]:
    """The results of the operator."""
    outs, sums = [], []
    for part in _parts("attention_varlen", q, k, (cu_seqlens_q, cu_seqlens_k), left, right):
        out, logsumexp = formula.attention(
            _heads_first(q, part.queries),
            _heads_first(k, part.keys),
            _heads_first(v, part.keys),
            sinks,
            part.seen,
            part.left,
            part.right,
            scale,
            softcap,
        )
        outs.append(out)
        sums.append(logsumexp.squeeze(0))
    return _tokens_first(outs), torch.cat(sums, -1)


def attention_varlen_backward(
    grad: Tensor,
    grad_logsumexp: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    sinks: Tensor | None,
    out: Tensor,
    logsumexp: Tensor,
    left: int,
    right: int,
    scale: float,
    softcap: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The results of the backward operator."""
    op = "attention_varlen_backward"
    found = [
        formula.attention_backward(
            _heads_first(grad, part.queries),
            grad_logsumexp[:, part.queries].unsqueeze(0),
            _heads_first(q, part.queries),
            _heads_first(k, part.keys),
            _heads_first(v, part.keys),
            None if sinks is None else wide(sinks),
            part.seen,
            _heads_first(out, part.queries),
            logsumexp[:, part.queries].unsqueeze(0),
            part.left,
            part.right,
            scale,
            softcap,
        )
        for part in _parts(op, q, k, (cu_seqlens_q, cu_seqlens_k), left, right)
    ]
    grads_q, grads_k, grads_v, grads_sinks = map(list, zip(*found, strict=True))
    grad_sinks = torch.stack(grads_sinks).sum(0).to(q.dtype)
    return _tokens_first(grads_q), _tokens_first(grads_k), _tokens_first(grads_v), grad_sinks


def backward_gradients(
    needs: Sequence[bool],
    grads: Sequence[Tensor],
    arguments: Arguments,
    saved: Sequence[Tensor] = (),
) -> list[Tensor | None]:
    """`Operator.backward` of `attention_varlen_backward`: second derivatives, sequence by sequence.

    For third derivatives the scores of all sequences are in memory.
    """
    bounds, options = arguments[5:7], arguments[10:]
    sequences = None
    if not torch.is_grad_enabled() and by_rows.can_cut((*grads, *arguments)):
        op = "attention_varlen_backward"
        sequences = sequences_of(op, arguments[2], arguments[3], bounds)
    if sequences is None:
        return reference_gradients(attention_varlen_backward, needs, grads, arguments)
    totals = [
        wide(torch.zeros_like(a)) if needed else None
        for a, needed in zip(arguments, needs, strict=True)
    ]
    # `attention_backward` has a bias after the sinks.
    wanted = [*needs[:5], needs[7], False, *needs[8:]]
    for own in sequences:
        parts = {i: _of_sequence(arguments[i], i, *own) for i in _TENSORS}
        found = by_rows.backward_gradients(
            wanted,
            [_of_sequence(grad, i, *own) for grad, i in zip(grads, (2, 3, 4, 7), strict=True)],
            (*(parts[i] for i in _TENSORS[:6]), None, *(parts[i] for i in _TENSORS[6:]), *options),
        )
        del found[6]
        for i, term in zip(_TENSORS, found, strict=False):
            total = _of_sequence(totals[i], i, *own)
            if total is not None and term is not None:
                total += term
    return [None if t is None else t.to(a.dtype) for t, a in zip(totals, arguments, strict=True)]


# Arguments of the backward operator: those with queries, with keys, with one value for a row, and
# the sinks.
_TENSORS = (0, 1, 2, 3, 4, 7, 8, 9)


def _of_sequence(tensor: Any, index: int, queries: slice, keys: slice) -> Any:
    """What one sequence has of an argument, as `attention_backward` takes it; a view."""
    if tensor is None:
        return None
    if index == 7:
        return wide(tensor)
    own = keys if index in (3, 4) else queries
    if index in (1, 9):
        return tensor[:, own].unsqueeze(0)
    return _heads_first(tensor, own)

"""Attention and its gradients in PyTorch's operators."""

from __future__ import annotations

import torch
from torch import Tensor

from fusewheel.ops._rows import wide

NOTHING = -torch.inf
"""The score of a key that a query does not see."""


def _grouped(a: Tensor, b: Tensor) -> Tensor:
    """`a @ b` for `a` `[B, Hq, M, N]` and `b` `[B, Hkv, N, P]`, which Hq / Hkv heads share."""
    batch, heads, rows, depth = a.shape
    group = heads // b.shape[1]
    together = a.reshape(batch, b.shape[1], group * rows, depth) @ b
    return together.reshape(batch, heads, rows, b.shape[3])


def _grouped_sum(a: Tensor, b: Tensor, kv_heads: int) -> Tensor:
    """The transposed `a` times `b`, `[B, Hq, M, N]` and `[B, Hq, M, P]`, summed over a group."""
    batch, heads, rows, _ = a.shape
    group = heads // kv_heads
    left = a.reshape(batch, kv_heads, group * rows, a.shape[3])
    return left.transpose(-1, -2) @ b.reshape(batch, kv_heads, group * rows, b.shape[3])


def _finite(x: Tensor) -> Tensor:
    return torch.where(x.isfinite(), x, 0.0)


def _capped(q: Tensor, k: Tensor, scale: float, softcap: float) -> Tensor:
    scores = wide(_grouped(q, k.transpose(-1, -2))) * scale
    return softcap * torch.tanh(scores / softcap) if softcap > 0 else scores


def _masked(
    scores: Tensor, bias: Tensor | None, left: int, right: int, first: int | None = None
) -> Tensor:
    """Scores with the bias; -inf for the keys that a query does not see."""
    queries, keys = scores.shape[2], scores.shape[3]
    if bias is not None:
        if bias.dtype == torch.bool:
            scores = torch.where(bias, scores, NOTHING)
        else:
            scores = scores + bias.to(scores.dtype)
    if left < 0 and right < 0:
        return scores
    key = torch.arange(keys, device=scores.device)
    # A larger number is no other window, but might be more than an integer holds.
    most = queries + keys if first is None else queries + keys + abs(first)
    first = keys - queries if first is None else first
    query = torch.arange(queries, device=scores.device).unsqueeze(-1) + first
    if left >= 0:
        scores = torch.where(key >= query - min(left, most), scores, NOTHING)
    if right >= 0:
        scores = torch.where(key <= query + min(right, most), scores, NOTHING)
    return scores


def _largest(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """Of each row, 0 if there is none; without a gradient."""
    if scores.shape[-1] == 0:
        peak = torch.full_like(scores.sum(-1, keepdim=True), NOTHING)
    else:
        peak = scores.amax(-1, keepdim=True)
    if sinks is not None:
        peak = torch.maximum(peak, wide(sinks).view(-1, 1, 1))
    peak = peak.detach()
    return torch.where(peak == NOTHING, 0.0, peak)


def _shares(scores: Tensor, sinks: Tensor | None) -> tuple[Tensor, Tensor]:
    """The softmax of each row and its logsumexp."""
    peak = _largest(scores, sinks)
    shares = (scores - peak).exp()
    total = shares.sum(-1, keepdim=True)
    if sinks is not None:
        total = total + (wide(sinks).view(-1, 1, 1) - peak).exp()
    nothing = total == 0
    total = torch.where(nothing, 1.0, total)
    logsumexp = torch.where(nothing, NOTHING, peak + total.log())
    return shares / total, logsumexp.squeeze(-1)


def _spoilt(v: Tensor, heads: int) -> Tensor:
    """Which values have an element that is not finite, `[B, Hq, 1, Lk]`."""
    group = heads // v.shape[1]
    return v.isfinite().all(-1).logical_not().repeat_interleave(group, 1).unsqueeze(-2)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sinks: Tensor | None,
    bias: Tensor | None,
    left: int,
    right: int,
    scale: float,
    softcap: float,
    dropout_p: float = 0.0,
    *,
    first: int | None = None,
) -> tuple[Tensor, Tensor]:
    """The results of the operator. With `dropout_p` shares are dropped by PyTorch's generator.

    The first query stands at key `first`; by default the last query stands at the last key.
    """
    scores = _masked(_capped(q, k, scale, softcap), bias, left, right, first)
    shares, logsumexp = _shares(scores, sinks)
    if dropout_p > 0:
        shares = torch.nn.functional.dropout(shares, dropout_p)
    shares = torch.where(_spoilt(v, q.shape[1]) & (scores != NOTHING), torch.nan, shares)
    return _grouped(shares.to(v.dtype), _finite(v)), logsumexp


def attention_backward(
    grad: Tensor,
    grad_logsumexp: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sinks: Tensor | None,
    bias: Tensor | None,
    out: Tensor,
    logsumexp: Tensor,
    left: int,
    right: int,
    scale: float,
    softcap: float,
    *,
    first: int | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The results of the backward operator; `first` as in `attention`."""
    capped = _capped(q, k, scale, softcap)
    scores = _masked(capped, bias, left, right, first)
    base = torch.where(logsumexp == NOTHING, 0.0, logsumexp)
    shares = (scores - base.unsqueeze(-1)).exp()
    delta = (wide(grad) * wide(out)).sum(-1) - grad_logsumexp
    hidden = scores == NOTHING
    grad_shares = torch.where(hidden, 0.0, wide(_grouped(grad, v.transpose(-1, -2))))
    slopes = shares * (grad_shares - delta.unsqueeze(-1))
    if softcap > 0:
        slopes = slopes * (1 - (capped / softcap).square())
    slopes = torch.where(hidden, 0.0, slopes).to(q.dtype)
    heads = k.shape[1]
    grad_sinks = q.new_empty(0)
    if sinks is not None:
        # dot(grad, out) from the shares: `out` is rounded.
        share = (wide(sinks).unsqueeze(-1) - base).exp()
        exact = (shares * grad_shares).sum(-1) - grad_logsumexp
        grad_sinks = -(share * exact).sum((0, 2)).to(sinks.dtype)
    return (
        _grouped(slopes, _finite(k)) * scale,
        _grouped_sum(slopes, q, heads) * scale,
        _grouped_sum(shares.to(q.dtype), grad, heads),
        grad_sinks,
    )


def bias_gradient(
    grad: Tensor,
    grad_logsumexp: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sinks: Tensor | None,
    bias: Tensor,
    left: int,
    right: int,
    scale: float,
    softcap: float,
    *,
    first: int | None = None,
) -> Tensor:
    """The gradient of a float bias, with the shape of the bias; `first` as in `attention`."""
    scores = _masked(_capped(q, k, scale, softcap), bias, left, right, first)
    shares, _ = _shares(scores, sinks)
    hidden = scores == NOTHING
    grad_shares = wide(_grouped(grad, _finite(v).transpose(-1, -2)))
    grad_shares = torch.where(hidden | _spoilt(v, q.shape[1]), 0.0, grad_shares)
    delta = (shares * grad_shares).sum(-1) - grad_logsumexp
    slopes = shares * (grad_shares - delta.unsqueeze(-1))
    return torch.where(hidden, 0.0, slopes).sum_to_size(bias.shape).to(bias.dtype)

"""What an operator may err by contract, beside what eager PyTorch errs.

A contract is stated in the documentation, and what it allows follows from it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from fusewheel.ops._rows import compute_dtype
from fusewheel.ops.attention import _attention_formula as formula
from fusewheel.ops.attention._varlen_formula import sequences_of
from fusewheel.ops.linear._blocks import decode_blocks
from fusewheel.ops.linear._quantized import INT4_BLOCK, decode_int4, decode_int8
from torch import Tensor
from torch.nn.functional import gelu, silu

Contract = Callable[..., Tensor]
"""From an operator's arguments, what each element of its result may err (float64)."""
GradientContract = Callable[..., dict[int, Tensor]]
"""From an operator's arguments and the gradients of its results, likewise of each gradient."""


def rounded_blocks(x: Tensor) -> Tensor:
    """What each activation `[..., K]` of a single row may err beside 4-bit weights (float64).

    docs/quantization.md, "What is rounded": a block of 32 is rounded to 16 bits or, in float32, to
    24. In half types it is 24 as well for a row in which one activation outweighs the rest of its
    block. A row that is not finite is not rounded.
    """
    blocks = x.double().unflatten(-1, (-1, INT4_BLOCK)).abs()
    largest, mean = blocks.amax(-1, keepdim=True), blocks.mean(-1, keepdim=True)
    if x.dtype == torch.float64 or not x.isfinite().all():
        return torch.zeros_like(x, dtype=torch.float64)
    fine = x.dtype == torch.float32 or bool((largest > 16 * mean).any())
    return (largest / (4e6 if fine else 64e3)).expand_as(blocks).flatten(-2)


def before_bias(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A linear layer's sum is rounded, twice where it is scaled, before its bias is added.

    docs/quantization.md, "What is rounded". Eager PyTorch may start from the bias and round once:
    where sum and bias cancel, that is more exact than the unit in the last place of the sum.
    """
    total = torch.nn.functional.linear(x.double(), weight.double())
    if bias is None:
        return torch.zeros_like(total)
    unit = torch.finfo(compute_dtype(x)).eps
    return unit * total.abs().nan_to_num(nan=0, posinf=0)  # infinity would allow anything


def linear_int8(
    x: Tensor, qweight: Tensor, scales: Tensor, bias: Tensor | None, dynamic: bool
) -> Tensor:
    """As a layer with the decoded weight. The judge knows how int8 rounds: eager does the same."""
    return before_bias(x, decode_int8(qweight, scales, torch.float64), bias)


def linear_int4(
    x: Tensor,
    qweight: Tensor,
    scales: Tensor,
    zeros: Tensor,
    group_size: int,
    bias: Tensor | None,
    dynamic: bool,
) -> Tensor:
    """Likewise; for a single row of half types its activations' errors as well, weighted."""
    weight = decode_int4(qweight, scales, zeros, group_size, torch.float64)
    allowed = before_bias(x, weight, bias)
    if dynamic or x.dtype.itemsize != 2 or x.numel() != x.shape[-1]:
        return allowed
    return allowed + rounded_blocks(x) @ weight.abs().T


def linear_blocks(x: Tensor, blocks: Tensor, kind: int, bias: Tensor | None) -> Tensor:
    """As a layer with the decoded weight, beside what the activations of a single row may err.

    docs/quantization.md, "What is rounded": as beside 4-bit weights, but 256 neighbouring
    activations share a step.
    """
    weight = decode_blocks(blocks, kind, torch.float64)
    allowed = before_bias(x, weight, bias)
    if x.dtype == torch.float64 or x.numel() != x.shape[-1] or not x.isfinite().all():
        return allowed
    padded = torch.nn.functional.pad(x.double(), (0, -x.shape[-1] % 256))
    groups = padded.unflatten(-1, (-1, 256)).abs()
    largest = groups.amax(-1, keepdim=True)
    # Of a last group that is not whole, the mean is that of what it has.
    counts = torch.ones_like(padded)
    counts[..., x.shape[-1] :] = 0
    mean = groups.sum(-1, keepdim=True) / counts.unflatten(-1, (-1, 256)).sum(-1, keepdim=True)
    fine = x.dtype == torch.float32 or bool((largest > 16.1 * mean).any())
    errors = (largest / (4e6 if fine else 64e3)).expand_as(groups).flatten(-2)
    return allowed + errors[..., : x.shape[-1]] @ weight.abs().T


def grouped_linear_blocks(
    x: Tensor, blocks: Tensor, kind: int, ends: Tensor, bias: Tensor | None
) -> Tensor:
    """As a `linear_blocks` for each group: a group may have a single row."""
    allowed = torch.zeros(x.shape[0], blocks.shape[1], dtype=torch.float64)
    begin = 0
    for e, end in enumerate(ends.tolist()):
        if end > begin and x.shape[1] > 0:
            own = None if bias is None else bias[e]
            allowed[begin:end] = linear_blocks(x[begin:end], blocks[e], kind, own)
        begin = end
    return allowed


def experts(
    x: Tensor,
    indices: Tensor,
    weights: Tensor,
    gate_up: Tensor,
    gate_up_kind: int,
    gate_up_bias: Tensor | None,
    down: Tensor,
    down_kind: int,
    down_bias: Tensor | None,
    activation: int,
) -> Tensor:
    """What the layers of each expert may err, as they hand it on.

    No slope of an activation is larger than 1.13.
    """
    functions = (silu, gelu, partial(gelu, approximate="tanh"))

    def layer(rows: Tensor, weight: Tensor, kind: int, bias: Tensor | None) -> tuple[Tensor, ...]:
        whole = weight.double() if kind == 0 else decode_blocks(weight, kind, torch.float64)
        wide_bias = None if bias is None else bias.double()
        exact = torch.nn.functional.linear(rows.double(), whole, wide_bias)
        if kind == 0 or rows.shape[1] == 0:
            return exact, before_bias(rows, whole, bias), whole.abs()
        return exact, linear_blocks(rows, weight, kind, bias), whole.abs()

    def own(table: Tensor | None, expert: int) -> Tensor | None:
        return None if table is None else table[expert]

    allowed = torch.zeros(x.shape, dtype=torch.float64)
    for token, place in (indices.ge(0) & indices.lt(len(gate_up))).nonzero().tolist():
        e = int(indices[token, place])
        row = x[token : token + 1]
        both, error, _ = layer(row, gate_up[e], gate_up_kind, own(gate_up_bias, e))
        (gate, up), (gate_error, up_error) = both.chunk(2, -1), error.chunk(2, -1)
        value = functions[activation](gate)
        error = 1.13 * gate_error * (up.abs() + up_error) + value.abs() * up_error
        hidden = (value * up).to(x.dtype)
        _, last, sizes = layer(hidden, down[e], down_kind, own(down_bias, e))
        allowed[token] += weights[token, place].double().abs() * (last + error @ sizes.T)[0]
    return allowed.nan_to_num(nan=0, posinf=0)


def attention_gradients(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sinks: Tensor | None,
    bias: Tensor | None,
    left: int,
    right: int,
    scale: float,
    softcap: float,
    grad: Tensor,
    grad_logsumexp: Tensor,
) -> dict[int, Tensor]:
    """What the rounding of logsumexp and of the result makes of each gradient.

    The docstring of `fusewheel.attention` states by how much they round. The backward computes the
    share of a key as `exp(score - logsumexp)`, so that all shares of a row err alike, and takes
    the product of the gradient and the result from the rounded result.
    """
    unit, rounded = (torch.finfo(dtype).eps for dtype in (compute_dtype(q), q.dtype))
    given = [None if t is None else t.double() for t in (q, k, v, sinks, grad, grad_logsumexp)]
    if bias is not None and bias.dtype != torch.bool:
        bias = bias.double()
    q, k, v, sinks, grad, grad_logsumexp = given
    scores = formula._masked(formula._capped(q, k, scale, softcap), bias, left, right)
    out, logsumexp = formula.attention(q, k, v, sinks, bias, left, right, scale, softcap)
    base = torch.where(logsumexp == formula.NOTHING, 0.0, logsumexp).unsqueeze(-1)
    off = unit * (formula._largest(scores, sinks).abs() + math.log(k.shape[2] + 1))
    shares = (scores - base).exp()
    delta = (grad * out).sum(-1) - grad_logsumexp
    slopes = formula._grouped(grad, v.transpose(-1, -2)) - delta.unsqueeze(-1)
    of_out = rounded / 2 * (grad * out).abs().sum(-1, keepdim=True)
    slopes = shares * (off * slopes.abs() + of_out)
    heads = k.shape[1]
    allowed = {
        0: formula._grouped(slopes, k.abs()) * scale,
        1: formula._grouped_sum(slopes, q.abs(), heads) * scale,
        2: formula._grouped_sum(off * shares, grad.abs(), heads),
    }
    if sinks is not None:
        share = (sinks.unsqueeze(-1) - base.squeeze(-1)).exp()
        allowed[3] = (off.squeeze(-1) * share * delta.abs()).sum((0, 2))
    if bias is not None and bias.dtype != torch.bool:
        allowed[4] = slopes.sum_to_size(bias.shape)
    return {index: tensor.nan_to_num(nan=0, posinf=0) for index, tensor in allowed.items()}


def attention_varlen_gradients(
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
    grad: Tensor,
    grad_logsumexp: Tensor,
) -> dict[int, Tensor]:
    """The same for each sequence."""

    def heads_first(tensor: Tensor, own: slice) -> Tensor:
        return tensor[own].transpose(0, 1).unsqueeze(0)

    allowed = {i: torch.zeros(t.shape, dtype=torch.float64) for i, t in enumerate((q, k, v))}
    if sinks is not None:
        allowed[5] = torch.zeros(sinks.shape, dtype=torch.float64)
    bounds = (cu_seqlens_q, cu_seqlens_k)
    for queries, keys in sequences_of("attention_varlen", q, k, bounds) or []:
        part = attention_gradients(
            *(heads_first(q, queries), heads_first(k, keys), heads_first(v, keys)),
            *(sinks, None, left, right, scale, softcap),
            *(heads_first(grad, queries), grad_logsumexp[:, queries].unsqueeze(0)),
        )
        for i, own in enumerate((queries, keys, keys)):
            allowed[i][own] = part[i].squeeze(0).transpose(0, 1)
        if sinks is not None:
            allowed[5] += part[3]
    return allowed


def linear_blocks_backward_gradients(
    grad: Tensor, blocks: Tensor, kind: int, seed: Tensor
) -> dict[int, Tensor]:
    """The gradient of a backward is a forward: `linear_blocks` of what comes back."""
    return {0: linear_blocks(seed, blocks, kind, None)}


def grouped_linear_blocks_backward_gradients(
    grad: Tensor, blocks: Tensor, kind: int, ends: Tensor, seed: Tensor
) -> dict[int, Tensor]:
    """Likewise `grouped_linear_blocks` of what comes back."""
    return {0: grouped_linear_blocks(seed, blocks, kind, ends, None)}


GRADIENT_CONTRACTS: dict[str, GradientContract] = {
    "linear_blocks_backward": linear_blocks_backward_gradients,
    "grouped_linear_blocks_backward": grouped_linear_blocks_backward_gradients,
    "attention": attention_gradients,
    "attention_varlen": attention_varlen_gradients,
}
"""By operator."""

CONTRACTS: dict[str, Contract] = {
    "linear": before_bias,
    "linear_int8": linear_int8,
    "linear_int4": linear_int4,
    "linear_blocks": linear_blocks,
    "grouped_linear_blocks": grouped_linear_blocks,
    "experts": experts,
}
"""By operator."""

"""Attention with grouped heads, windows, sinks, a soft cap and its logsumexp as a result"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fusewheel.dispatch.operator import Arguments, Operator
from fusewheel.dispatch.sharding import PARTIAL, Layout, Place, places
from fusewheel.ops._not_tensors import with_type_errors
from fusewheel.ops._rows import empty_statistic
from fusewheel.ops.attention import _attention as inputs
from fusewheel.ops.attention import _attention_formula as formula
from fusewheel.ops.attention import _attention_rows as by_rows
from fusewheel.ops.attention._attention import (
    check_attention,
    check_attention_backward,
    empty_heads,
    factor_of,
    limits,
)


@with_type_errors
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    window: tuple[int | None, int | None] | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    bias: Tensor | None = None,
    dropout_p: float = 0.0,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """`softmax(scale * q @ k.transpose(-1, -2) + bias) @ v`, without materialising the scores.

    With `s = scale * dot(q, k)`, capped if `softcap` is not 0 (`softcap * tanh(s / softcap)`), plus
    the bias, the result of a query is `sum(exp(s - lse) * v)` over the keys that it sees. `lse` is
    the logsumexp of these `s`, and of the head's sink if there are sinks. A query that sees no key
    has the result 0, an `lse` of -inf (the sink, if there is one), and no gradient.

    Keys that a query does not see are ignored, also if they contain NaN. A float bias of -inf hides
    a key in the same way. A query that sees a value with an element that is NaN or infinite gets
    NaN.

    Everything is computed in float32 (float64 for float64) and rounded once, with these exceptions
    in half types:

    * bfloat16 on a CPU with AMX, an AMD CPU with AVX512_BF16 or a GPU with tensor cores: the shares
      `exp(s - lse)`, and in the backward also the gradients of the scores, are rounded to bfloat16
      before they are multiplied. Sums are float32.
    * float16 on a GPU with tensor cores: the backward rounds the same numbers to float16. The
      forward keeps 22 bits of a share.

    Memory grows linearly with the length, in the forward and in the backward. Results have the same
    bits for any number of threads, and in every call on a GPU. Gradients flow to `q`, `k`, `v`,
    `sinks` and a float `bias`, also through `lse`.

    PyTorch operators compute the gradient of `bias`, second derivatives and everything with
    dropout. They compute some queries at a time, so memory grows linearly there too. All scores are
    in memory only in programs that are compiled or traced, for distributed tensors, under
    `torch.func`, in forward mode and for third derivatives. TorchScript compiles no function with
    keyword-only arguments; there call `torch.ops.fusewheel.attention`.

    Source: Dao et al., "FlashAttention" (2022) and "FlashAttention-2" (2023); Xiao et al.,
    "Efficient Streaming Language Models with Attention Sinks" (2023), in the form of gpt-oss
    (2025); Gemma 2 (2024) for the soft cap.

    Args:
        q: `[B, Hq, Lq, D]`; float32, bfloat16, float16 or float64. Any strides, also in `k` and
            `v`.
        k: `[B, Hkv, Lk, D]`, with the dtype and device of `q`; Hq is a multiple of Hkv, and
            Hq / Hkv heads of `q` in a row share a head of `k` and `v`.
        v: `[B, Hkv, Lk, Dv]`, with the dtype and device of `q`.
        causal: whether query `i` sees no key after `i + Lk - Lq`: the last query sees all keys;
            default False. (PyTorch's `is_causal` aligns the first query with the first key
            instead.)
        window: `(left, right)`: query `i` sees key `i + Lk - Lq`, at most `left` keys before it and
            at most `right` keys after it. None or -1 instead of a number: no limit on that side.
            Default None: no limits.
        scale: the factor of the scores; default `D ** -0.5`.
        softcap: the largest magnitude of a score without its bias; default 0, which means no cap.
        sinks: `[Hq]`, one logit for each head, which counts in the softmax but has no value; dtype
            and device of `q`. Default None.
        bias: broadcastable to `[B, Hq, Lq, Lk]`: bool, true for the keys that are seen, or of the
            dtype of `q` and added to the capped scores. Default None.
        dropout_p: the probability, from 0 to 1, that a key is dropped for a query, by PyTorch's
            generator of random numbers; the other shares are scaled by `1 / (1 - dropout_p)`. `lse`
            is computed without dropout. Default 0.
        return_lse: whether to return `lse` too; default False.

    Returns:
        `[B, Hq, Lq, Dv]` in the dtype of `q`, contiguous, or with heads inside of positions in
        memory where those of `q` are. If `return_lse`: this, and `lse` `[B, Hq, Lq]`, contiguous,
        float32 (float64 for float64), a natural logarithm. It errs by at most `eps` times the
        magnitude of the row's largest score (or sink) plus `log(Lk + 1)`, with the `eps` of its
        dtype. The backward computes from the result and `lse`, and no other intermediate number is
        kept. So the relative error of all shares of a row there is the error of `lse`, and the
        product of a row of the result and its gradient has the error of the rounded result.

    Raises:
        ValueError: `dropout_p` is out of range, or `window` is not a pair.
        TypeError: a tensor is missing, or `window` is neither a tuple nor a list.
        RuntimeError: a dtype, shape or device is not as above, or a number of `window` or
            `softcap` is out of range.
    """
    left, right = limits("attention", causal, window)
    factor = factor_of(q, scale)
    if bias is not None:
        while bias.dim() < 4:
            bias = bias.unsqueeze(0)
    if not 0 <= dropout_p <= 1:
        raise ValueError(f"attention: dropout_p must be between 0 and 1, got {dropout_p}")
    if dropout_p > 0:
        check_attention("attention", q, k, v, sinks, bias, left, right, softcap)
        options = (left, right, factor, softcap, dropout_p)
        out, lse = by_rows.with_dropout(q, k, v, sinks, bias, *options)
    else:
        out, lse = torch.ops.fusewheel.attention(q, k, v, sinks, bias, left, right, factor, softcap)
    return (out, lse) if return_lse else out


def _reference(*arguments: Any) -> tuple[Tensor, Tensor]:
    return formula.attention(*arguments)


def _fake(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sinks: Tensor | None,
    bias: Tensor | None,
    left: int,
    right: int,
    scale: float,
    softcap: float,
) -> tuple[Tensor, Tensor]:
    check_attention("attention", q, k, v, sinks, bias, left, right, softcap)
    return empty_heads((*q.shape[:3], v.shape[3]), q), empty_statistic(q)


def _backward(
    needs: Sequence[bool], grads: Sequence[Tensor], arguments: Arguments, saved: Sequence[Tensor]
) -> list[Tensor | None]:
    found: list[Tensor | None] = [None] * len(arguments)
    if any(needs[:4]):
        given, options = arguments[:5], arguments[5:]
        parts = torch.ops.fusewheel.attention_backward(*grads, *given, *saved, *options)
        found[:4] = [part if needed else None for part, needed in zip(parts, needs, strict=False)]
    if needs[4]:
        found[4] = by_rows.bias_gradient(grads, arguments)
    return found


def _backward_fake(
    grad: Tensor,
    grad_logsumexp: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sinks: Tensor | None,
    *rest: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    op = "attention_backward"
    check_attention_backward(op, grad, grad_logsumexp, q, k, v, sinks, *rest)
    grad_q, grad_k, grad_v = (empty_heads(tuple(t.shape), t) for t in (q, k, v))
    return grad_q, grad_k, grad_v, q.new_empty(0 if sinks is None else sinks.shape)


def _flops(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> int:
    batch, heads, queries, size = q.shape
    return 2 * batch * heads * queries * k.shape[2] * (size + v.shape[3])


def _backward_flops(
    grad: Tensor, grad_logsumexp: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any
) -> int:
    batch, heads, queries, size = q.shape
    return 2 * batch * heads * queries * k.shape[2] * (3 * size + 2 * v.shape[3])


def _layouts(
    arguments: Sequence[Any], of_rows: Sequence[int], bias: int, outputs: int
) -> Iterator[Layout]:
    """The batch is cut, or the heads: those of q and of k into as many equal pieces.

    Args:
        arguments: those of the operator. Before the bias are q, k, v and the sinks.
        of_rows: indices of the arguments that have the heads of q, or of k and v.
        bias: index of the bias.
        outputs: the number of results that have a batch and heads; one more is that of the sinks.
    """
    shape = arguments[bias - 4].shape
    for dim in (0, 1):
        where: dict[int, Place] = dict.fromkeys(of_rows, dim)
        if arguments[bias] is not None and arguments[bias].shape[dim] == shape[dim]:
            where[bias] = dim
        if dim == 1:
            where[bias - 1] = 0
        found: tuple[Place, ...] = (dim,) * outputs
        if outputs > 2:
            has_sinks = arguments[bias - 1] is not None
            found = (*found, PARTIAL if dim == 0 and has_sinks else 0)
        yield Layout(places(arguments, where), found, even=dim == 1)


def _sharding(*arguments: Any) -> Iterator[Layout]:
    yield from _layouts(arguments, (0, 1, 2), bias=4, outputs=2)


def _backward_sharding(*arguments: Any) -> Iterator[Layout]:
    yield from _layouts(arguments, (0, 1, 2, 3, 4, 7, 8), bias=6, outputs=3)


OPERATORS = (
    Operator(
        name="attention",
        autocast="lower",
        flops=_flops,
        reference=_reference,
        fake=_fake,
        shapes=("q[:3] + v[3:]", "q[:3]"),
        backward=_backward,
        saves=("q", "k", "v", "sinks", "bias", "out", "logsumexp"),
        sharding=_sharding,
        samples=inputs.samples,
        bad_inputs=inputs.bad_inputs,
        benchmarks=inputs.benchmarks,
        function=attention,
    ),
    Operator(
        name="attention_backward",
        flops=_backward_flops,
        reference=formula.attention_backward,
        fake=_backward_fake,
        shapes=("q", "k", "v", "sinks if sinks is not None else [0]"),
        backward=by_rows.backward_gradients,
        sharding=_backward_sharding,
        samples=inputs.backward_samples,
        bad_inputs=inputs.backward_bad_inputs,
    ),
)

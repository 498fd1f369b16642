"""Attention of sequences of different lengths, packed one after the other without padding"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fusewheel.dispatch.operator import Arguments, Operator
from fusewheel.dispatch.sharding import Layout, places
from fusewheel.ops._not_tensors import with_type_errors
from fusewheel.ops._rows import compute_dtype
from fusewheel.ops.attention import _attention_varlen as inputs
from fusewheel.ops.attention import _varlen_formula as formula
from fusewheel.ops.attention._attention import factor_of, limits
from fusewheel.ops.attention._attention_varlen import check_varlen, check_varlen_backward


@with_type_errors
def attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    *,
    causal: bool = False,
    window: tuple[int | None, int | None] | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """`fusewheel.attention` of sequences of different lengths, packed one after the other without
    padding.

    Sequence `i` has the queries `q[cu_seqlens_q[i] : cu_seqlens_q[i + 1]]`, and the keys and values
    from `cu_seqlens_k[i]` to `cu_seqlens_k[i + 1]`. Its queries see no other keys. With
    `s = scale * dot(q, k)`, capped if `softcap` is not 0 (`softcap * tanh(s / softcap)`), the
    result of a query is `sum(exp(s - lse) * v)` over the keys that it sees. `lse` is the logsumexp
    of these `s`, and of the head's sink if there are sinks. A query that sees no key has the result
    0, an `lse` of -inf (the sink, if there is one), and no gradient. A sequence may have queries
    and no keys, keys and no queries, or neither.

    Everything is computed in float32 (float64 for float64) and rounded once. Memory grows linearly
    with the tokens, in the forward and in the backward. The result of a sequence has the same bits
    as `fusewheel.attention` of this sequence alone, whatever else is packed and for any number of
    threads. So do its gradients, except that of `sinks`, which is a sum over all sequences. NaN in
    one sequence does not reach another. Gradients flow to `q`, `k`, `v` and `sinks`, also through
    `lse`.

    PyTorch operators compute the other derivatives, one sequence after the other. Second
    derivatives have the scores of some queries in memory at a time, forward mode and third
    derivatives all scores of a sequence. Under `torch.func`, and if second derivatives are
    compiled, all sequences are computed together, with a mask and the scores of all queries and
    keys in memory; then NaN in one sequence may make a gradient in another one NaN. TorchScript
    compiles no function with keyword-only arguments; there call
    `torch.ops.fusewheel.attention_varlen`.

    Source: as for `fusewheel.attention`; the form of the arguments is that of
    `flash_attn_varlen_func` of Dao et al., "FlashAttention" (2022).

    Args:
        q: `[total_q, Hq, D]`; float32, bfloat16, float16 or float64. Any strides, also in `k` and
            `v`.
        k: `[total_k, Hkv, D]`, with the dtype and device of `q`; Hq is a multiple of Hkv, and
            Hq / Hkv heads of `q` in a row share a head of `k` and `v`.
        v: `[total_k, Hkv, Dv]`, with the dtype and device of `q`.
        cu_seqlens_q: int32 or int64 `[sequences + 1]`, on the device of `q`: the sums of the
            lengths of the sequences so far. The first number is 0, no number is less than the one
            before, and the last is `total_q`.
        cu_seqlens_k: likewise for the keys; the last is `total_k`. The same number of sequences;
            dtypes of the two may differ.
        causal: whether query `i` of a sequence with `Lq` queries and `Lk` keys sees no key after
            `i + Lk - Lq`: its last query sees all of its keys; default False.
        window: `(left, right)`: query `i` of a sequence sees its key `i + Lk - Lq`, at most `left`
            keys before it and at most `right` keys after it. None or -1 instead of a number: no
            limit on that side. Default None: no limits.
        scale: the factor of the scores; default `D ** -0.5`.
        softcap: the largest magnitude of a score; default 0, which means no cap.
        sinks: `[Hq]`, one logit for each head, which counts in the softmax but has no value; dtype
            and device of `q`. Default None.
        return_lse: whether to return `lse` too; default False.

    Returns:
        `[total_q, Hq, Dv]` in the dtype of `q`, contiguous. If `return_lse`: this, and `lse`
        `[Hq, total_q]`, heads first as in flash-attention, contiguous, float32 (float64 for
        float64), a natural logarithm, as exact as that of `fusewheel.attention`.
        `fusewheel.merge_attention` takes `lse.T`.

    Raises:
        ValueError: `window` is not a pair.
        TypeError: a tensor is missing, or `window` is neither a tuple nor a list.
        RuntimeError: a dtype, shape or device is not as above, a number of `window` or `softcap` is
            out of range, or, on a CPU, the numbers in `cu_seqlens_q` or `cu_seqlens_k` are not as
            above. On a GPU all results are NaN if these numbers are wrong. Under `torch.func`, and
            where second derivatives are compiled, they are not checked.
    """
    left, right = limits("attention_varlen", causal, window)
    bounds = cu_seqlens_q, cu_seqlens_k
    out, lse = torch.ops.fusewheel.attention_varlen(
        q, k, v, *bounds, sinks, left, right, factor_of(q, scale), softcap
    )
    return (out, lse) if return_lse else out


def _fake(
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
    op = "attention_varlen"
    check_varlen(op, q, k, v, cu_seqlens_q, cu_seqlens_k, sinks, left, right, softcap)
    queries, heads, _ = q.shape
    logsumexp = q.new_empty((heads, queries), dtype=compute_dtype(q))
    return q.new_empty((queries, heads, v.shape[2])), logsumexp


def _backward(
    needs: Sequence[bool], grads: Sequence[Tensor], arguments: Arguments, saved: Sequence[Tensor]
) -> list[Tensor | None]:
    given, options = arguments[:6], arguments[6:]
    parts = torch.ops.fusewheel.attention_varlen_backward(*grads, *given, *saved, *options)
    found: list[Tensor | None] = [None] * len(arguments)
    for index, part in zip((0, 1, 2, 5), parts, strict=True):
        found[index] = part if needs[index] else None
    return found


def _backward_fake(
    grad: Tensor,
    grad_logsumexp: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    sinks: Tensor | None,
    *rest: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    op = "attention_varlen_backward"
    given = (grad, grad_logsumexp, q, k, v, cu_seqlens_q, cu_seqlens_k, sinks)
    check_varlen_backward(op, *given, *rest)
    grad_q, grad_k, grad_v = (t.new_empty(t.shape) for t in (q, k, v))
    return grad_q, grad_k, grad_v, q.new_empty(0 if sinks is None else sinks.shape)


def _pairs(q: Tensor, k: Tensor, *bounds: Tensor) -> int:
    """Of a query and a key in one sequence; of all queries and keys where sequences are unknown."""
    sequences = formula.sequences_of("attention_varlen", q, k, bounds)
    if sequences is None:
        return q.shape[0] * k.shape[0]
    return sum((a.stop - a.start) * (b.stop - b.start) for a, b in sequences)


def _flops(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, *rest: Any
) -> int:
    pairs = _pairs(q, k, cu_seqlens_q, cu_seqlens_k)
    return 2 * q.shape[1] * pairs * (q.shape[2] + v.shape[2])


def _backward_flops(
    grad: Tensor,
    grad_logsumexp: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    *rest: Any,
) -> int:
    pairs = _pairs(q, k, cu_seqlens_q, cu_seqlens_k)
    return 2 * q.shape[1] * pairs * (3 * q.shape[2] + 2 * v.shape[2])


def _sharding(*arguments: Any) -> Iterator[Layout]:
    """The heads are cut, those of q and of k into as many equal pieces. Tokens are not."""
    yield Layout(places(arguments, {0: 1, 1: 1, 2: 1, 5: 0}), (1, 0), even=True)


def _backward_sharding(*arguments: Any) -> Iterator[Layout]:
    where = {0: 1, 1: 0, 2: 1, 3: 1, 4: 1, 7: 0, 8: 1, 9: 0}
    yield Layout(places(arguments, where), (1, 1, 1, 0), even=True)


OPERATORS = (
    Operator(
        name="attention_varlen",
        autocast="lower",
        flops=_flops,
        reference=formula.attention_varlen,
        fake=_fake,
        shapes=("q[:2] + v[2:]", "[q[1], q[0]]"),
        backward=_backward,
        saves=("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "sinks", "out", "logsumexp"),
        sharding=_sharding,
        samples=inputs.samples,
        bad_inputs=inputs.bad_inputs,
        benchmarks=inputs.benchmarks,
        function=attention_varlen,
    ),
    Operator(
        name="attention_varlen_backward",
        flops=_backward_flops,
        reference=formula.attention_varlen_backward,
        fake=_backward_fake,
        shapes=("q", "k", "v", "sinks if sinks is not None else [0]"),
        backward=formula.backward_gradients,
        sharding=_backward_sharding,
        samples=inputs.backward_samples,
        bad_inputs=inputs.backward_bad_inputs,
    ),
)

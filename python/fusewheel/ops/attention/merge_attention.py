"""Merges two partial attention results over disjoint sets of keys into one"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fusewheel.dispatch.operator import Arguments, BadInput, Make, Operator
from fusewheel.dispatch.sharding import PARTIAL, REPLICATE, Layout, row_wise
from fusewheel.ops._checks import check_rows, check_same, check_statistic
from fusewheel.ops._elementwise import empty_rows
from fusewheel.ops._rows import empty_statistic, wide

NOTHING = -torch.inf
"""The logsumexp of a partial result over no keys."""


def merge_attention(
    out: Tensor, logsumexp: Tensor, other: Tensor, other_logsumexp: Tensor
) -> tuple[Tensor, Tensor]:
    """Merges two partial attention results over disjoint sets of keys into one. With
    `total = log(exp(logsumexp) + exp(other_logsumexp))` it is
    `out * exp(logsumexp - total) + other * exp(other_logsumexp - total)`.

    So attention over many keys can be computed in parts: over a cache and over new keys, over a
    prefix that several requests share, or over the keys of each process. Everything is computed in
    float32 (float64 for float64) and rounded once. When you merge many parts one after the other in
    bfloat16 or float16, every merge rounds; pass float32 tensors to avoid that.

    A logsumexp of -inf means that the part has no keys. Such a part is ignored, even if it contains
    NaN: the result is the other part, and the ignored part's gradients are 0. Two such parts give 0
    and -inf. If a logsumexp is NaN or +inf, both results are NaN in that row.

    Source: Dao et al., "FlashAttention" (2022), which merges blocks of keys in this way; Liu et
    al., "Ring Attention with Blockwise Transformers" (2023).

    Args:
        out: attention over the first set of keys `[..., D]`, usually `[batch, heads, length, D]` or
            `[batch, length, heads, D]`; float32, bfloat16, float16 or float64. A transposed view is
            read without a copy.
        logsumexp: `[...]`, the shape of `out` without `D`: the natural logarithm of the sum of the
            exponentials of the scores; float32, or float64 if `out` is float64.
        other: attention over the second set of keys; shape, dtype and device of `out`.
        other_logsumexp: its logsumexp; shape, dtype and device of `logsumexp`.

    Returns:
        Attention over both sets of keys, with the dtype and strides of `out` (contiguous if `out`
        has gaps or a row's elements are not neighbours in memory), and its logsumexp, contiguous
        `[...]`.

    Raises:
        RuntimeError: a dtype or shape is not as above, `out` has no dimension, or a tensor is
            sparse.
    """
    result: tuple[Tensor, Tensor] = torch.ops.fusewheel.merge_attention(
        out, logsumexp, other, other_logsumexp
    )
    return result


def _shares(logsumexp: Tensor, other_logsumexp: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The weights of the two parts in the result, and the result's logsumexp."""
    peak = torch.maximum(logsumexp, other_logsumexp).detach()
    nothing = peak == NOTHING
    peak = torch.where(nothing, 0.0, peak)
    own, others = (logsumexp - peak).exp(), (other_logsumexp - peak).exp()
    # One of the two is 1. Adding a small one to it would lose digits, so their sum is kept less 1.
    rest = torch.where(own < others, others - 1 + own, own - 1 + others)
    rest = torch.where(nothing, 0.0, rest)
    both = 1 + rest
    return own / both, others / both, torch.where(nothing, NOTHING, peak + rest.log1p())


def _counted(rows: Tensor, logsumexp: Tensor) -> Tensor:
    """The rows in the dtype of computation, 0 where the part has no keys."""
    return torch.where((logsumexp == NOTHING).unsqueeze(-1), 0.0, wide(rows))


def _reference(
    out: Tensor, logsumexp: Tensor, other: Tensor, other_logsumexp: Tensor
) -> tuple[Tensor, Tensor]:
    own, others, total = _shares(logsumexp, other_logsumexp)
    merged = _counted(out, logsumexp) * own.unsqueeze(-1)
    merged = merged + _counted(other, other_logsumexp) * others.unsqueeze(-1)
    return merged.to(out.dtype), total


def _check(op: str, out: Tensor, logsumexp: Tensor, other: Tensor, other_logsumexp: Tensor) -> None:
    check_rows(op, ("out", out))
    check_statistic(op, ("logsumexp", logsumexp), out)
    check_same(op, ("other", other), ("out", out))
    check_statistic(op, ("other_logsumexp", other_logsumexp), out)


def _fake(
    out: Tensor, logsumexp: Tensor, other: Tensor, other_logsumexp: Tensor
) -> tuple[Tensor, Tensor]:
    op = "merge_attention"
    _check(op, out, logsumexp, other, other_logsumexp)
    return empty_rows(op, ("out", out)), empty_statistic(out)


def _backward(
    needs: Sequence[bool], grads: Sequence[Tensor], arguments: Arguments, saved: Sequence[Tensor]
) -> Sequence[Any]:
    found: Sequence[Any] = torch.ops.fusewheel.merge_attention_backward(*grads, *arguments)
    return found


def _values(make: Make, *shape: int, scale: float = 1.0) -> Tensor:
    """A value for every row, in the dtype of a logsumexp."""
    values = wide(make(*shape, scale=scale).detach())
    return values.requires_grad_(make.requires_grad)


def _pair(make: Make, *shape: int, scale: float = 1.0) -> Arguments:
    lead = shape[:-1]
    first, second = ((make(*shape), _values(make, *lead, scale=scale)) for _ in range(2))
    return *first, *second


def _samples(make: Make) -> Iterator[Arguments]:
    yield _pair(make, 255, 123)
    out, values, other, others = _pair(make, 2, 5, 3, 16)
    # Strides of the results of PyTorch's attention, and of a transposed logsumexp.
    out, other = out.transpose(1, 2), other.transpose(1, 2)
    yield out, values.reshape(2, 3, 5), other, others.transpose(1, 2)
    yield make.strided(3, 4, 33), _values(make, 3, 4), make(3, 4, 33), _values(make, 4, 3).T
    yield make.transposed(2, 9, 8), _values(make, 2, 9), make(2, 9, 8), _values(make, 2, 9)
    values, others = _values(make, 33), _values(make, 1).expand(33)
    yield make(33, 40)[:, 8:], values, make(1, 32).expand(33, 32), others
    yield _pair(make, 40, 64, scale=20.0)
    out, values, other, others = _pair(make, 2, 3, 8)
    nothing = others.detach().clone()
    nothing[1] = NOTHING
    yield out, values, other, nothing.requires_grad_(make.requires_grad)
    yield _pair(make, 7)
    yield _pair(make, 33, 1)
    yield _pair(make, 33, 0)
    yield _pair(make, 0, 4)


def _benchmarks(make: Make) -> Iterator[tuple[str, Arguments]]:
    for length, heads, size in ((1, 9, 64), (256, 9, 64), (2048, 32, 128)):
        out, values, other, others = _pair(make, 1, length, heads, size)
        values, others = (t.reshape(1, heads, length) for t in (values, others))
        yield (
            f"{length}x{heads}x{size}",
            (out.transpose(1, 2), values, other.transpose(1, 2), others),
        )


def _bad_inputs(make: Make) -> Iterator[BadInput]:
    out, values, other, others = _pair(make, 4, 8)
    wrong = torch.float64 if out.dtype != torch.float64 else torch.float32
    yield BadInput((out.int(), values, other, others), "out must be float32.*got int32")
    yield BadInput((out, values, other.to(wrong), others), "other must have the dtype of out")
    yield BadInput((out, values, make(4, 7), others), r"other must have shape \[4, 8\]")
    yield BadInput((out, values.bfloat16(), other, others), "logsumexp must be float.*got bfloat16")
    yield BadInput((out, values, other, others[:3]), r"other_logsumexp must have shape \[4\]")
    yield BadInput((out, values.unsqueeze(-1), other, others), r"logsumexp must have shape \[4\]")
    yield BadInput((make(), values, make(), others), "out must have at least one dimension")


def _sharding(*arguments: Any) -> Iterator[Layout]:
    yield from row_wise(range(4), ("rows", "rows"))(*arguments)
    last = len(arguments[0].shape) - 1
    yield Layout((last, REPLICATE, last, REPLICATE), (last, REPLICATE))


def _backward_reference(
    grad_merged: Tensor,
    grad_merged_logsumexp: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    other: Tensor,
    other_logsumexp: Tensor,
) -> tuple[Tensor, ...]:
    own, others, _ = _shares(logsumexp, other_logsumexp)
    rows, values = wide(grad_merged), grad_merged_logsumexp
    apart = _counted(out, logsumexp) - _counted(other, other_logsumexp)
    alone = (logsumexp == NOTHING) | (other_logsumexp == NOTHING)
    spread = torch.where(alone, 0.0, own * others * (rows * apart).sum(-1))
    found: list[Tensor] = []
    for share, own_spread, part in ((own, spread, logsumexp), (others, -spread, other_logsumexp)):
        grad = _counted(rows * share.unsqueeze(-1), part).to(out.dtype)
        found += grad, torch.where(part == NOTHING, 0.0, values * share + own_spread)
    return tuple(found)


def _backward_fake(
    grad_merged: Tensor, grad_merged_logsumexp: Tensor, out: Tensor, *rest: Tensor
) -> tuple[Tensor, ...]:
    op = "merge_attention_backward"
    _check(op, out, *rest)
    check_same(op, ("grad_merged", grad_merged), ("out", out))
    check_statistic(op, ("grad_merged_logsumexp", grad_merged_logsumexp), out)
    parts = (("out", out), ("other", rest[1]))
    grad_out, grad_other = (empty_rows(op, part) for part in parts)
    return grad_out, empty_statistic(out), grad_other, empty_statistic(out)


def _backward_samples(make: Make) -> Iterator[Arguments]:
    for i, arguments in enumerate(_samples(make)):
        shape = arguments[0].shape
        grad = (make.strided if i % 2 else make)(*shape)
        yield grad, _values(make, *shape[:-1]), *arguments


def _backward_bad_inputs(make: Make) -> Iterator[BadInput]:
    given = _pair(make, 4, 8)
    out, values, *_ = given
    yield BadInput((make(4, 7), values, *given), r"grad_merged must have shape \[4, 8\]")
    for bad in _bad_inputs(make):
        yield BadInput((out, values, *bad.arguments), bad.message)
    yield BadInput((out, values[:3], *given), r"grad_merged_logsumexp must have shape \[4\]")
    yield BadInput((out, values.half(), *given), "grad_merged_logsumexp must be float.*float16")


def _backward_sharding(*arguments: Any) -> Iterator[Layout]:
    yield from row_wise(range(6), ("rows",) * 4)(*arguments)
    last = len(arguments[0].shape) - 1
    # The gradient of a logsumexp sums over a row, so a device with a part of the row has a partial
    # sum; then the incoming gradient of the logsumexp must be a partial sum too.
    inputs = (last, PARTIAL, last, REPLICATE, last, REPLICATE)
    yield Layout(inputs, (last, PARTIAL, last, PARTIAL))


OPERATORS = (
    Operator(
        name="merge_attention",
        reference=_reference,
        fake=_fake,
        shapes=("out", "logsumexp"),
        backward=_backward,
        statistics=(1, 3),
        sharding=_sharding,
        samples=_samples,
        bad_inputs=_bad_inputs,
        benchmarks=_benchmarks,
        function=merge_attention,
    ),
    Operator(
        name="merge_attention_backward",
        reference=_backward_reference,
        fake=_backward_fake,
        shapes=("out", "logsumexp", "other", "other_logsumexp"),
        sharding=_backward_sharding,
        samples=_backward_samples,
        bad_inputs=_backward_bad_inputs,
    ),
)

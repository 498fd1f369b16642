"""Attention to the keys of two parts, given attention to those of either"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fusewheel._elementwise import empty_rows
from fusewheel._operator import Arguments, BadInput, Make, Operator
from fusewheel._rows import check_same, compute_dtype, empty_statistic, wide
from fusewheel._sharding import PARTIAL, REPLICATE, Layout, row_wise

NOTHING = -torch.inf
"""The logsumexp of a part without keys."""


def merge_attention(
    out: Tensor, logsumexp: Tensor, other: Tensor, other_logsumexp: Tensor
) -> tuple[Tensor, Tensor]:
    """Attention to the keys of two parts, given attention to those of either: with
    `total = log(exp(logsumexp) + exp(other_logsumexp))` it is
    `out * exp(logsumexp - total) + other * exp(other_logsumexp - total)`.

    So attention to many keys is made of attention to some of them at a time: to a cache and to new
    keys, to a prefix that requests share, or to what other processes have. Where many parts are
    merged one after the other, in bfloat16 or float16, each step rounds: give `out` in float32.

    A part whose logsumexp is -inf has seen no key. It counts for nothing whatever it holds, NaN
    too: the result is the other part, unchanged, and all its gradients are 0. Two such parts give 0
    and -inf. A logsumexp that is NaN or +inf makes NaN of both results in its row; NaN and
    infinities in any other part go the way of the formula.

    Source: Dao et al., "FlashAttention" (2022), which merges blocks in this way; Liu et al., "Ring
    Attention with Blockwise Transformers" (2023).

    Args:
        out: attention to the keys of one part `[..., D]`: as a rule `[batch, heads, length, D]` or
            `[batch, length, heads, D]`; float32, bfloat16, float16 or float64. A transposed view is
            read as it lies.
        logsumexp: natural logarithms of the sums of exponentials of its scores `[...]`, out's shape
            without D; float32, float64 where `out` is.
        other: attention to the keys of the other part; shape, dtype and device of `out`.
        other_logsumexp: likewise, as `logsumexp`.

    Returns:
        Attention to the keys of both, of out's dtype and memory layout (contiguous where that has
        gaps or the elements of a row are apart), and its logsumexp, a contiguous tensor `[...]`.
        Computed in float32 (float64 for float64) and rounded once.

    Raises:
        RuntimeError: a dtype is not as said, shapes do not fit, `out` has no dimension, or a tensor
            is sparse.
    """
    result: tuple[Tensor, Tensor] = torch.ops.fusewheel.merge_attention(
        out, logsumexp, other, other_logsumexp
    )
    return result


def _shares(logsumexp: Tensor, other_logsumexp: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What either part is of the whole, and the logsumexp of that."""
    peak = torch.maximum(logsumexp, other_logsumexp).detach()
    nothing = peak == NOTHING
    peak = torch.where(nothing, 0.0, peak)
    own, others = (logsumexp - peak).exp(), (other_logsumexp - peak).exp()
    # One of them is 1, beside which a small other one would be lost.
    rest = torch.where(own < others, others - 1 + own, own - 1 + others)
    rest = torch.where(nothing, 0.0, rest)
    both = 1 + rest
    return own / both, others / both, torch.where(nothing, NOTHING, peak + rest.log1p())


def _counted(rows: Tensor, logsumexp: Tensor) -> Tensor:
    """As a kernel computes with it: 0 where it has seen no key."""
    return torch.where((logsumexp == NOTHING).unsqueeze(-1), 0.0, wide(rows))


def _reference(
    out: Tensor, logsumexp: Tensor, other: Tensor, other_logsumexp: Tensor
) -> tuple[Tensor, Tensor]:
    own, others, total = _shares(logsumexp, other_logsumexp)
    merged = _counted(out, logsumexp) * own.unsqueeze(-1)
    merged = merged + _counted(other, other_logsumexp) * others.unsqueeze(-1)
    return merged.to(out.dtype), total


def _check(op: str, out: Tensor, logsumexp: Tensor, other: Tensor, other_logsumexp: Tensor) -> None:
    torch._check(out.dim() > 0, lambda: f"{op}: out must have at least one dimension")
    check_same(op, "other", other, out)
    for name, values in (("logsumexp", logsumexp), ("other_logsumexp", other_logsumexp)):
        _check_statistic(op, name, values, out)


def _check_statistic(op: str, name: str, values: Tensor, out: Tensor) -> None:
    torch._check(
        values.shape == out.shape[:-1] and values.dtype == compute_dtype(out),
        lambda: (
            f"{op}: {name} must have shape {list(out.shape[:-1])} and be {compute_dtype(out)}, "
            f"got {list(values.shape)} and {values.dtype}"
        ),
    )


def _fake(
    out: Tensor, logsumexp: Tensor, other: Tensor, other_logsumexp: Tensor
) -> tuple[Tensor, Tensor]:
    _check("merge_attention", out, logsumexp, other, other_logsumexp)
    return empty_rows(out), empty_statistic(out)


def _backward(
    needs: Sequence[bool], grads: Sequence[Tensor], arguments: Arguments, saved: Sequence[Tensor]
) -> Sequence[Any]:
    found: Sequence[Any] = torch.ops.fusewheel.merge_attention_backward(*grads, *arguments)
    return found


def _values(make: Make, *shape: int, scale: float = 1.0) -> Tensor:
    """One for every row."""
    values = wide(make(*shape, scale=scale).detach())
    return values.requires_grad_(make.requires_grad)


def _pair(make: Make, *shape: int, scale: float = 1.0) -> Arguments:
    lead = shape[:-1]
    first, second = ((make(*shape), _values(make, *lead, scale=scale)) for _ in range(2))
    return *first, *second


def _samples(make: Make) -> Iterator[Arguments]:
    yield _pair(make, 255, 123)
    out, values, other, others = _pair(make, 2, 5, 3, 16)
    # As PyTorch's attention gives them, and as others have the logsumexp.
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
    yield BadInput((out, None, other, others), r"logsumexp\b.*(None|NoneType)")
    if out.dtype == torch.float32:
        yield BadInput((out, values, other.to_sparse(), others), "other must be a dense tensor")


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
    check_same(op, "grad_merged", grad_merged, out)
    _check_statistic(op, "grad_merged_logsumexp", grad_merged_logsumexp, out)
    return empty_rows(out), empty_statistic(out), empty_rows(rest[1]), empty_statistic(out)


def _backward_samples(make: Make) -> Iterator[Arguments]:
    for i, arguments in enumerate(_samples(make)):
        shape = arguments[0].shape
        grad = (make.strided if i % 2 else make)(*shape)
        yield grad, _values(make, *shape[:-1]), *arguments


def _backward_bad_inputs(make: Make) -> Iterator[BadInput]:
    given = _pair(make, 4, 8)
    out, values, *rest = given
    yield BadInput((make(4, 7), values, *given), r"grad_merged must have shape \[4, 8\]")
    yield BadInput((out, values[:3], *given), r"grad_merged_logsumexp must have shape \[4\]")
    yield BadInput((out, values.half(), *given), "grad_merged_logsumexp must be float.*float16")
    yield BadInput((out, values, out, None, *rest), r"logsumexp\b.*(None|NoneType)")


def _backward_sharding(*arguments: Any) -> Iterator[Layout]:
    yield from row_wise(range(6), ("rows",) * 4)(*arguments)
    last = len(arguments[0].shape) - 1
    # Gradients of a logsumexp sum over a row, so what is added to them is a part of a sum too.
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

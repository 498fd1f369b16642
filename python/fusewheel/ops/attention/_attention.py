"""What attention refuses, and its sample inputs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from fusewheel.dispatch.operator import Arguments, BadInput, Make
from fusewheel.dispatch.promise import Argument, check_same_device, fail
from fusewheel.dispatch.symbolic import known
from fusewheel.ops._checks import (
    check,
    check_floating,
    check_matches,
    check_sizes,
    check_statistic,
)
from fusewheel.ops._rows import wide
from fusewheel.ops.attention._attention_formula import attention as formula


def check_attention(
    op: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sinks: Tensor | None,
    bias: Tensor | None,
    left: int,
    right: int,
    softcap: float,
) -> None:
    """Raises the errors of the kernel (`fusewheel/attention/attention.h`)."""
    first = "q", q
    check_floating(op, first)
    check_dims(op, first, 4, "[batch, heads, queries, head size]")
    check_matches(op, ("k", k), first)
    check_dims(op, ("k", k), 4, "[batch, heads, keys, head size]")
    check_matches(op, ("v", v), first)
    check_dims(op, ("v", v), 4, "[batch, heads, keys, head size of the result]")
    check_group(op, q, k)
    (batch, heads, queries, size), kv_heads, keys = q.shape, k.shape[1], k.shape[2]
    check_sizes(op, ("k", k), (batch, kv_heads, keys, size), "batch and head size are those of q")
    expected = (batch, kv_heads, keys, v.shape[3])
    check_sizes(op, ("v", v), expected, "batch, heads and keys are those of k")
    if sinks is not None:
        check_matches(op, ("sinks", sinks), first)
        check_sizes(op, ("sinks", sinks), (heads,), "the heads of q")
    if bias is not None:
        _check_bias(op, bias, first, (batch, heads, queries, keys))
    check_options(op, left, right, softcap)


def check_dims(op: str, argument: Argument, dims: int, shape: str) -> None:
    """Raises an error unless a tensor has so many dimensions."""
    name, tensor = argument
    if tensor.dim() != dims:
        fail(op, f"{name} must have shape {shape}, got {list(tensor.shape)}")


def check_group(op: str, q: Tensor, k: Tensor) -> None:
    """Raises an error unless the heads of k, dimension 1, divide those of q."""
    heads, kv_heads = q.shape[1], k.shape[1]
    message = (
        f"k must have a number of heads that divides that of q, {heads}, got shape {list(k.shape)}"
    )
    if known(kv_heads == 0) or known(heads == 0):
        fail(op, message)
    check(op, heads % kv_heads == 0, message)


def check_options(op: str, left: int, right: int, softcap: float) -> None:
    """Raises an error unless the window and the soft cap are in range."""
    for name, count in (("left", left), ("right", right)):
        if count < -1:
            fail(op, f"{name} must be a number of keys, or -1 for all of them, got {count}")
    if not softcap >= 0:
        fail(op, f"softcap must be positive, or 0 for none, got {softcap:f}")


def limits(op: str, causal: bool, window: tuple[int | None, int | None] | None) -> tuple[int, int]:
    """The keys that a query sees left and right of its own, -1 for all, from public arguments.

    Raises:
        ValueError: `window` is not a pair.
        TypeError: it is neither a tuple nor a list.
    """
    if window is not None:
        if not isinstance(window, (tuple, list)):
            raise TypeError(f"{op}: window must be (left, right), got {window}")
        if len(window) != 2:
            raise ValueError(f"{op}: window must be (left, right), got {window}")
    left, right = (-1 if keys is None else keys for keys in window or (None, None))
    return left, 0 if causal and right >= -1 else right


def factor_of(q: Tensor, scale: float | None = None) -> float:
    """The factor of the scores, by default `D ** -0.5`; of no features, and of what will be refused
    because it has no dimension, 1.
    """
    size = q.shape[-1] if q.dim() > 0 else 1
    return float(max(size, 1) ** -0.5) if scale is None else scale


def _check_bias(op: str, bias: Tensor, first: Argument, scores: tuple[Any, ...]) -> None:
    if bias.dtype != torch.bool:
        check_matches(op, ("bias", bias), first)
    else:
        check_same_device(op, ("bias", bias), first)
    message = (
        f"bias must have the shape of the scores, {list(scores)}, with any of these sizes 1, got "
        f"{list(bias.shape)}"
    )
    if bias.dim() != 4:
        fail(op, message)
    for size, wanted in zip(bias.shape, scores, strict=True):
        if not known(size == 1):
            check(op, size == wanted, message)


def check_attention_backward(
    op: str,
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
) -> None:
    """Raises the errors of the backward kernel."""
    check_attention(op, q, k, v, sinks, bias, left, right, softcap)
    result = (*q.shape[:3], v.shape[3])
    for name, tensor in (("grad", grad), ("out", out)):
        check_matches(op, (name, tensor), ("q", q))
        check_sizes(op, (name, tensor), result, "that of the result")
    check_statistic(op, ("grad_logsumexp", grad_logsumexp), q)
    check_statistic(op, ("logsumexp", logsumexp), q)


def empty_heads(sizes: tuple[Any, ...], like: Tensor) -> Tensor:
    """An empty result: contiguous, but heads inside of positions where those of `like` are."""
    if not known(like.stride(1) < like.stride(2)):
        return like.new_empty(sizes)
    batch, heads, rows, size = sizes
    return like.new_empty((batch, rows, heads, size)).transpose(1, 2)


def samples(make: Make) -> Iterator[Arguments]:
    """Argument tuples that cover the options, shapes and strides."""

    def call(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        sinks: Tensor | None = None,
        bias: Tensor | None = None,
        window: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
        scale: float | None = None,
    ) -> Arguments:
        return q, k, v, sinks, bias, *window, factor_of(q, scale), softcap

    yield call(make(2, 4, 33, 16), make(2, 4, 47, 16), make(2, 4, 47, 16))
    # Small enough for finite differences.
    yield call(
        *(make(1, 2, 3, 2), make(1, 1, 4, 2), make(1, 1, 4, 3), make(2), make(1, 2, 1, 4)),
        window=(2, 0),
        softcap=2.0,
    )
    yield call(make(3, 4, 7, 5), make(3, 4, 7, 5), make(3, 4, 7, 5), window=(-1, 0))
    yield call(make(1, 6, 255, 40), make(1, 2, 255, 40), make(1, 2, 255, 24), window=(-1, 0))
    yield call(
        *(make(1, 48, 35, 16), make(1, 16, 141, 16), make(1, 16, 141, 16), make(48)),
        window=(20, 5),
        softcap=3.0,
    )
    q, k, v = (make(2, length, heads, 32) for length, heads in ((70, 4), (90, 2), (90, 2)))
    mask = torch.ones(2, 1, 70, 90, dtype=torch.bool, device=make.device).tril(30)
    mask[1, :, :, 60:] = False
    mask[:, :, 3] = False  # a query that sees no key
    yield call(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), None, mask)
    yield call(
        *(make.strided(2, 36, 11, 7), make.strided(2, 9, 15, 7), make.strided(2, 9, 15, 13)),
        *(make.strided(36), make.strided(1, 36, 11, 15)),
    )
    yield call(
        *(make(1, 8, 17, 80, scale=2.0), make(1, 8, 19, 80, scale=2.0), make(1, 8, 19, 80)),
        bias=make(1, 8, 1, 19).expand(1, 8, 17, 19),
        scale=0.3,
    )
    yield call(make(3, 12, 1, 24), make(3, 4, 300, 24), make(3, 4, 300, 24), window=(-1, 0))
    yield call(
        *(make.transposed(1, 2, 100, 130), make.transposed(1, 2, 140, 130)),
        make(1, 2, 140, 260),
        window=(0, 7),
    )
    yield call(make(2, 3, 9, 1), make(2, 3, 11, 1), make(2, 3, 11, 1))
    yield call(make(0, 2, 5, 4), make(0, 2, 5, 4), make(0, 2, 5, 4), window=(-1, 0))


def benchmarks(make: Make) -> Iterator[tuple[str, Arguments]]:
    """Arguments of the sizes that models use, each with a label."""
    for length, heads, kv_heads, size in ((512, 9, 3, 64), (2048, 9, 3, 64), (1024, 32, 8, 128)):
        q, k, v = (make(1, count, length, size) for count in (heads, kv_heads, kv_heads))
        label = f"{heads}:{kv_heads}x{length}x{size}"
        yield label, (q, k, v, None, None, -1, 0, size**-0.5, 0.0)


def bad_inputs(make: Make) -> Iterator[BadInput]:
    """Argument tuples that the operator must refuse."""
    q, k, v = make(2, 4, 5, 8), make(2, 2, 6, 8), make(2, 2, 6, 3)
    options = (-1, -1, 0.5, 0.0)
    other = torch.float64 if q.dtype != torch.float64 else torch.float32
    none = (None, None)
    yield BadInput((q.int(), k, v, *none, *options), "q must be float32.*got int32")
    yield BadInput((q[0], k, v, *none, *options), r"q must have shape \[batch, heads, queries")
    yield BadInput((q, k.to(other), v, *none, *options), "k must have the dtype of q")
    yield BadInput((q, k[0], v, *none, *options), r"k must have shape \[batch, heads, keys")
    yield BadInput((q, k, v[0], *none, *options), r"v must have shape \[batch, heads, keys")
    yield BadInput((q[:, :3], k, v, *none, *options), "divides that of q, 3, got shape")
    yield BadInput((q, k[:, :0], v[:, :0], *none, *options), "divides that of q, 4, got shape")
    yield BadInput((q, k[:1], v, *none, *options), r"k must have shape \[2, 2, 6, 8\]")
    yield BadInput((q, k[..., :7], v, *none, *options), r"k must have shape \[2, 2, 6, 8\]")
    yield BadInput((q, k, v[:, :, :5], *none, *options), r"v must have shape \[2, 2, 6, 3\]")
    yield BadInput((q, k, v, make(3), None, *options), r"sinks must have shape \[4\].*got \[3\]")
    wrong = make(4).to(other)
    yield BadInput((q, k, v, wrong, None, *options), "sinks must have the dtype of q")
    for bias in (make(5, 6), make(2, 2, 5, 6), make(1, 4, 6, 6).bool()):
        message = r"bias must have the shape of the scores, \[2, 4, 5, 6\]"
        yield BadInput((q, k, v, None, bias, *options), message)
    wrong = make(1, 1, 5, 6).to(other)
    yield BadInput((q, k, v, None, wrong, *options), "bias must have the dtype of q")
    yield BadInput((q, k, v, *none, -2, -1, 0.5, 0.0), "left must be a number of keys")
    yield BadInput((q, k, v, *none, -1, -3, 0.5, 0.0), "right must be a number of keys")
    yield BadInput((q, k, v, *none, -1, -1, 0.5, -1.0), "softcap must be positive, or 0")


def _with_results(make: Make, arguments: Arguments) -> Arguments:
    """Arguments of the backward operator."""
    q, k, v, sinks, bias, *rest = arguments
    given: list[Any] = [t if t is None else t.detach() for t in (q, k, v, sinks, bias)]
    out, logsumexp = formula(*given, *rest)
    grad_logsumexp = wide(make(*logsumexp.shape).detach())
    results = [t.detach().requires_grad_(make.requires_grad) for t in (out, logsumexp)]
    grad_logsumexp.requires_grad_(make.requires_grad)
    return make(*out.shape), grad_logsumexp, q, k, v, sinks, bias, *results, *rest


def backward_samples(make: Make) -> Iterator[Arguments]:
    """Argument tuples of the backward operator."""
    for index, arguments in enumerate(samples(make)):
        grad, *rest = _with_results(make, arguments)
        yield make.strided(*grad.shape) if index % 3 == 1 else grad, *rest


def backward_bad_inputs(make: Make) -> Iterator[BadInput]:
    """Argument tuples that the backward operator must refuse."""
    good = (make(2, 4, 5, 8), make(2, 2, 6, 8), make(2, 2, 6, 3), None, None, -1, -1, 0.5, 0.0)
    grad, grad_logsumexp, *_, out, logsumexp = _with_results(make, good)[:9]
    for bad in bad_inputs(make):
        given, options = bad.arguments[:5], bad.arguments[5:]
        yield BadInput((grad, grad_logsumexp, *given, out, logsumexp, *options), bad.message)
    q, options = good[:5], good[5:]
    wrong = (
        ((grad[:1], grad_logsumexp), (out, logsumexp), r"grad must have shape \[2, 4, 5, 3\]"),
        ((grad, grad_logsumexp[0]), (out, logsumexp), r"grad_logsumexp must have shape \[2, 4, 5"),
        ((grad, grad_logsumexp), (out[..., :2], logsumexp), r"out must have shape \[2, 4, 5, 3\]"),
        ((grad, grad_logsumexp), (out, logsumexp.bfloat16()), "logsumexp must be float.*bfloat16"),
    )
    for first, last, message in wrong:
        yield BadInput((*first, *q, *last, *options), message)
